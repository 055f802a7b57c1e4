"""Learning to Ask: what its stages have of their own beside episodes, objectives, costs and advisors."""
