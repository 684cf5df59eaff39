"""Reinforcement learning from rewards: rollouts, advantages, the KL penalty, policy gradients."""
