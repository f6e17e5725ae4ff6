"""Selection of cliques.

Views of marginals, AIM's scores, sketches, InDif, annealing.
"""
