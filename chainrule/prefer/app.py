"""The page of `chainrule prefer` as a FastAPI app."""
