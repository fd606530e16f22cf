"""Scripts as users write them: what PacTrain is said to work with, and what it refuses.

Each is a function that runs in every rank. It is run by torch alone and with PacTrain, and
table.py says what is to come of it. scripts_check.py beside this folder compares.
"""
