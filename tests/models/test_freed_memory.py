"""Freed memory stays with the process for the next pass, and goes back when that is asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

from exegete import heap

ROUNDS = """
import json, resource
from exegete.heap import give_back, keep_freed

def fetched():
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        held = [bytearray(3 << 20) for _ in range(4)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

fetched()
usual = fetched()
keep_freed()
fetched()
kept = fetched()
give_back()
print(json.dumps([usual, kept, fetched()]))
"""


def test_pages_are_fetched_once_and_again_when_they_were_given_back():
    here = os.environ | {"PYTHONPATH": str(Path(heap.__file__).parents[1])}
    usual, kept, again = json.loads(subprocess.check_output([sys.executable, "-c", ROUNDS], env=here))
    assert 20 * kept < usual
    assert kept < again < usual
