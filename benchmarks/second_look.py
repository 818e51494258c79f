"""Who a model fails, and what a second look gains: real data with groups that no method sees.

    python benchmarks/second_look.py prepare --data DIR --cache CACHE      # features and tables, once
    python benchmarks/second_look.py run --half tuning --cache CACHE --out results/second_look.jsonl
    python benchmarks/second_look.py run --half kept --cache CACHE --out results/second_look.jsonl
    python benchmarks/second_look.py table --out results/second_look.jsonl

Written down before any number of this benchmark was looked at:

* The tuning half, on which every default is chosen: digits with rare hidden digits, Dominoes, Waterbirds features
  (seeds decide the folds; a bootstrap of the training set besides), and labels flipped at 5, 10 and 20% on data where
  nothing stands out (breast cancer, wine, iris, all ten digits).
* The kept half, run once, after the defaults are fixed: CIFAR10-ST features, CIFAR100-hidden features, Adult, tweets
  with dialects, diabetes130, crashes, and labels drawn again from the reference's own out-of-fold probabilities.
* Five seeds each. No method sees a group label in training or choosing, except the oracles, which are named so.
* Success with defaults, mean worst group over five seeds: Dominoes >= 70 (whole network trained again), digits >= 68
  (`SecondLook`), Waterbirds >= 78 (`repair` of the plainly trained head, mean accuracy >= 92; stretch 84).
* Where the verdict says "helps": on no data set is the mean worst group more than 2 points below plain training's,
  and in no run significantly (5%, one-sided, of that group's test samples).
* Flipped and redrawn labels: "helps" in at most 3 of at least 60 runs.
* The yardstick is regret: the best of the candidate settings as chosen with group labels, less the choice made
  without.
"""
