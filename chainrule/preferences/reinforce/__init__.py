"""REINFORCE and its relatives, which learn from rewards: rollouts, advantages, the KL penalty, policy gradients."""
