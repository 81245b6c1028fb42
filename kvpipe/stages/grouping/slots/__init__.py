"""Equal slots, uneven chunks: groups of a pool where any free slot serves any table.

One arena of slots of S bytes, and every block of every table is one slot. A table has its own
layers and its own block size, as many tokens as fill the slot:

    S   [ 16 tokens of 10 windows            ]   group 0: 10 sliding layers, blocks of 16 tokens
    S   [ 16 tokens of 10 windows            ]   group 1
    S   [ 80 tokens of 2 windows             ]   group 2: 2 sliding layers, blocks of 80 tokens
    S   [ 16 tokens of 10 full layers        ]   group 3

To read in this order: options (what a user may say), kinds (which layers may share a table, in
which blocks), weights (what a block costs), partition (the cheapest tables for one S), search
(which S), guard (no length at which another plan is smaller), repack (the plan that is never worse
by itself), rule (all of it).
"""
