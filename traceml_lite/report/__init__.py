"""Results to text. Renderers return lines and compute nothing."""
