"""Pages, pictures and tables of a run's or a sweep's results.

Draws them, and knows neither.
"""
