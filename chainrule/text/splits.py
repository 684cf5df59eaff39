"""What is trained on and what is held out: given files, else whole documents, else the end of the text. Always said."""
