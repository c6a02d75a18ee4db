"""Generated training and test text of the embedded demo model; no outside data is read."""
