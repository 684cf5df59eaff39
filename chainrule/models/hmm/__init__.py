"""The hidden Markov model: forward-backward, Viterbi, Baum–Welch, and a tagger."""
