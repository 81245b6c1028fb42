"""Parameters of what stands beside the part that generates: towers of images and of sound, and what
joins them to it."""
