"""What selects a clique: views of marginals, AIM's scores, sketches, InDif, annealing."""
