"""Models as functions of one flat parameter vector, and what moves it."""
