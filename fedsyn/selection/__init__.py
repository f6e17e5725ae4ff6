"""Selection of cliques: views of marginals, AIM's scores, sketches, InDif."""
