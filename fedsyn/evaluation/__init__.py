"""Quality of a table: from real rows, holders, or released values.

The modules of this folder are what the three have in common: inputs, scores, boxes, trees, the record of an evaluation
and its verdict. `real` reads real rows, `federated` asks the holders, `predicted` reads released values alone;
`analysis` is for those who use several tables. `report` stands above them, and shows what they found.
"""
