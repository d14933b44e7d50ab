"""Common names and places that are hardly ever another word, compiled for this project.

Words with another meaning in English (Will, Grace, Mark, Rose, Reading, Nice, Turkey, Chad) are left out, because a
swap must not change the meaning of a text.
"""

from __future__ import annotations

WOMEN = (
    "Agnes", "Alice", "Amanda", "Andrea", "Angela", "Anna", "Barbara", "Beatrice", "Brenda", "Carol", "Caroline",
    "Catherine", "Charlotte", "Christine", "Claire", "Deborah", "Diana", "Dorothy", "Elena", "Elizabeth", "Emily",
    "Emma", "Erica", "Eva", "Fiona", "Hannah", "Helen", "Irene", "Isabel", "Jane", "Janet", "Jennifer", "Jessica",
    "Joan", "Judith", "Julia", "Karen", "Kate", "Laura", "Linda", "Lisa", "Lucy", "Margaret", "Maria", "Martha", "Mary",
    "Megan", "Melissa", "Michelle", "Monica", "Nancy", "Natalie", "Nicole", "Olivia", "Pamela", "Patricia", "Rachel",
    "Rebecca", "Samantha", "Sandra", "Sarah", "Sharon", "Sophie", "Susan", "Teresa", "Theresa", "Ursula", "Vanessa",
    "Victoria", "Wendy", "Zoë",
)  # fmt: skip
MEN = (
    "Aaron", "Adam", "Alan", "Albert", "Alexander", "Alfred", "Andrew", "Anthony", "Arthur", "Benjamin", "Brian",
    "Charles", "Christopher", "Daniel", "David", "Dennis", "Donald", "Douglas", "Edward", "Eric", "Ethan", "Francis",
    "Frederick", "Gary", "George", "Gerald", "Gregory", "Harold", "Henry", "Hugh", "Jacob", "James", "Jason", "Jeffrey",
    "Jeremy", "John", "Jonathan", "Joseph", "Joshua", "Keith", "Kenneth", "Kevin", "Larry", "Lawrence", "Leonard",
    "Louis", "Martin", "Matthew", "Michael", "Nathan", "Nicholas", "Oliver", "Patrick", "Paul", "Peter", "Philip",
    "Ralph", "Raymond", "Richard", "Robert", "Roger", "Ronald", "Samuel", "Scott", "Sean", "Simon", "Stephen", "Steven",
    "Theodore", "Thomas", "Timothy", "Victor", "Walter", "William", "René",
)  # fmt: skip
SURNAMES = (
    "Adams", "Allen", "Anderson", "Bailey", "Bennett", "Campbell", "Carter", "Collins", "Cooper", "Davis", "Edwards",
    "Evans", "Foster", "Garcia", "Gonzalez", "Griffin", "Hamilton", "Harris", "Henderson", "Hernandez", "Howard",
    "Hughes", "Jackson", "Jenkins", "Johnson", "Jones", "Kelly", "Kowalski", "Lewis", "Lopez", "Martinez", "Miller",
    "Mitchell", "Morgan", "Morris", "Müller", "Murphy", "Nelson", "Parker", "Patterson", "Perez", "Peterson",
    "Phillips", "Ramirez", "Reynolds", "Richardson", "Roberts", "Robinson", "Rodriguez", "Rogers", "Russell", "Sanchez",
    "Sanders", "Schmidt", "Simmons", "Smith", "Stewart", "Sullivan", "Taylor", "Thompson", "Turner", "Walker", "Watson",
    "Williams", "Wilson",
)  # fmt: skip
COUNTRIES = (
    "Albania", "Algeria", "Argentina", "Australia", "Austria", "Belgium", "Bolivia", "Brazil", "Bulgaria", "Cambodia",
    "Cameroon", "Canada", "Chile", "Colombia", "Croatia", "Cuba", "Denmark", "Ecuador", "Egypt", "England", "Estonia",
    "Ethiopia", "Finland", "France", "Germany", "Ghana", "Greece", "Hungary", "Iceland", "India", "Indonesia", "Iran",
    "Iraq", "Ireland", "Israel", "Italy", "Jamaica", "Japan", "Kenya", "Latvia", "Lebanon", "Lithuania", "Malaysia",
    "Mexico", "Mongolia", "Morocco", "Nepal", "New Zealand", "Nigeria", "Norway", "Pakistan", "Peru", "Poland",
    "Portugal", "Romania", "Russia", "Scotland", "Senegal", "Serbia", "South Africa", "South Korea", "Spain", "Sudan",
    "Sweden", "Switzerland", "Syria", "Taiwan", "Thailand", "Tunisia", "Uganda", "Ukraine", "Uruguay", "Venezuela",
    "Vietnam", "Zambia", "Zimbabwe",
)  # fmt: skip
CITIES = (
    "Amsterdam", "Athens", "Atlanta", "Baltimore", "Bangkok", "Barcelona", "Beijing", "Belgrade", "Berlin", "Bogotá",
    "Boston", "Brussels", "Bucharest", "Budapest", "Buenos Aires", "Cairo", "Chicago", "Cleveland", "Copenhagen",
    "Dallas", "Damascus", "Delhi", "Denver", "Detroit", "Dublin", "Düsseldorf", "Edinburgh", "Geneva", "Glasgow",
    "Hamburg", "Helsinki", "Hong Kong", "Houston", "Istanbul", "Jakarta", "Jerusalem", "Johannesburg", "Kabul", "Kyiv",
    "Kyoto", "Lagos", "Lisbon", "Liverpool", "London", "Los Angeles", "Madrid", "Manchester", "Manila", "Melbourne",
    "Miami", "Milan", "Montreal", "Moscow", "Mumbai", "Munich", "Nairobi", "Naples", "New York", "Osaka", "Oslo",
    "Paris", "Philadelphia", "Pittsburgh", "Prague", "Rome", "San Francisco", "Santiago", "São Paulo", "Seattle",
    "Seoul", "Shanghai", "Singapore", "Stockholm", "Sydney", "Tehran", "Tokyo", "Toronto", "Vancouver", "Vienna",
    "Warsaw", "Zürich",
)  # fmt: skip

# In a text without capitals, names are also found in lower case, except for these, which are words too.
WORDS = frozenset({"carol", "grant", "hugh", "sharon", "chile", "jersey", "miller", "cooper", "carter", "walker"})

NUMBERS = (
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

NEGATIONS = (
    ("are not", "aren't"), ("could not", "couldn't"), ("did not", "didn't"), ("does not", "doesn't"),
    ("do not", "don't"), ("had not", "hadn't"), ("has not", "hasn't"), ("have not", "haven't"), ("is not", "isn't"),
    ("must not", "mustn't"), ("should not", "shouldn't"), ("was not", "wasn't"), ("were not", "weren't"),
    ("would not", "wouldn't"), ("can not", "can't"), ("cannot", "can't"), ("will not", "won't"),
)  # fmt: skip
PRONOUNS = (
    *((word, "is", "'s") for word in ("it", "he", "she", "that", "there", "what", "who", "where", "here", "how")),
    *((word, "are", "'re") for word in ("you", "we", "they")),
    *((word, "have", "'ve") for word in ("i", "you", "we", "they")),
    *((word, "will", "'ll") for word in ("i", "you", "he", "she", "it", "we", "they", "that", "there")),
    ("i", "am", "'m"),
)
