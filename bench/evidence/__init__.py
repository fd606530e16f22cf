"""The evidence: what each method's steps are worth and cost, side by side (make report)."""
