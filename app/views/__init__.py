"""Pure functions from records to what the page shows: JSON-able values and strings.

Nothing here imports torch or gradio, and nothing returns HTML: the page writes every string with
`textContent`.
"""
