"""Statistics of people's answers: pure functions of plain values, without pages and storage."""
