"""Learning from preferences: pairs of answers, reward models, DPO and its relatives, reinforcement learning."""
