"""Reading answers: LaTeX and plain text to an own syntax tree."""
