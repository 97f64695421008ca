"""Tables and figures, made of the committed results."""
