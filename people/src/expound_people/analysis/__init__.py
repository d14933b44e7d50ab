"""Statistics of annotators' answers: pure functions of plain values, without pages or storage."""
