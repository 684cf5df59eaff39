"""The hidden Markov model (HMM): forward-backward, Viterbi, Baum–Welch, and a tagger."""
