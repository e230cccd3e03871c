"""Words that give away an English sentence on a page in another language."""

_WORDS = (
    "a all and are at be before bits by cache chosen each every exit exits first for from in is it "
    "its layer layers leave left lower measured no not of on one only or over policy position run "
    "sentence similarity stored than that the then this threshold to token tokens twin was "
    "weights when which with backbone dense execution steps prompt group groups note fused "
    "confidence gap fixed unknown packaged"
)
ENGLISH = tuple(_WORDS.split())
