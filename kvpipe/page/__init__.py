"""A page that answers while sliders move: plans that were made, as one HTML file or over HTTP."""
