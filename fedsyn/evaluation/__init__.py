"""How good a table is: from real rows, asked of its holders, predicted from what was released."""
