"""Pages, pictures and tables of what a run or a sweep left. Draws, and knows neither."""
