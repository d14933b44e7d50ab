"""The data that several families of studies read, and the model of their small scale."""

SST = "sst:${EXPOUND_DATA:-data}/sst"
SNLI = "snli:${EXPOUND_DATA:-data}/snli"
MOVIES = "eraser:${EXPOUND_DATA:-data}/movies"
REVIEWS = "labeled:${EXPOUND_DATA:-data}/reviews/customer-reviews.txt?skip_empty=true"
MINILM = "${EXPOUND_BACKBONE:-sentence-transformers/all-MiniLM-L6-v2}"
