"""The tables, figures and claims of five papers on explanations, reproduced with expound."""
