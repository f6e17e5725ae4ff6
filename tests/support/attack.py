"""What an adversary concludes from transcripts: four statements about a mechanism, each of which can fail.

*success*. The adversary says in which world a run took place: the likelier one. Under (eps, delta)-DP any such test
has P(right | 1) <= e^eps P(wrong | 0) + delta, and so with 0 and 1 exchanged; added up, with A the mean of the two
probabilities of being right, A <= (e^eps + delta) / (1 + e^eps). From k right of n runs, half of them in each world,
Clopper-Pearson's bound for n equal trials is a lower bound on A also for two kinds of trials (Hoeffding 1956: their
sum has the lighter tail). Beside it the sharper but hungrier test: a threshold on the log ratio is chosen on one half
of the runs, and P(above | own world) and P(above | other) are bounded on the other half. Nothing about noise is
assumed, so this statement finds whatever the others do not model; with few runs it finds leaks, not shortfalls.

*divergence*. Given the past, a release's expected log ratio is known exactly: |shift|^2 / (2 sigma^2), or the
divergence of two softmaxes. In zCDP their sum is at most rho, in every single run. No sampling error: a canary that
moves what enters a ledger by more than the entries say is seen at once.

*gap*. The mean log ratio towards the truth, of both worlds together, is at most 2 rho. Given the past, each release's
log ratio is sub-Gaussian around its mean with variance proxy 2 rho_t (a Gaussian's is |shift|^2 / sigma^2; a choice's
log ratio has a range of at most eps_t, so eps_t^2 / 4 by Hoeffding's lemma), hence so is a whole run's with 2 R, R the
rho of its budget, however adaptive, and the means of n runs in each world exceed 2 rho together by z sqrt(4 R / n)
with probability at most exp(-z^2 / 2). It shows noise that is not independent of the rows or not centred. It is
computed with the noise that is claimed, so noise that is too small does not move it (the adversary's ratio would be
off by that factor). Hence:

*noise*. The likelihood of all that was released in builds whose noise is 0.85 or 0.5 of the claim (the mean of both),
over that in the honest build. In the honest build it is a martingale with mean 1, however many values a run releases
and however it came to ask for them, so it exceeds 1/alpha with probability at most alpha (Markov). For each kind of
release, and for all together.

False alarms. Each statement about one mechanism fails for an honest build with probability at most ALPHA; there are 4
for each of 20 audits (10 mechanisms, few and many runs), and for each of 17 more with a whole client as the canary (8
mechanisms, few and many runs, and once more beside broken builds): below 2e-6 in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from support.transcripts import SHORT, Transcript

ALPHA = 1e-8


def violated(runs: Sequence[Transcript], epsilon: float, delta: float) -> dict[str, str]:
    """The statements that the runs, as many in one world as in the other, refute; each with the figures."""
    found = {}
    bound = epsilon_lower_bound(runs, delta, ALPHA)
    if bound > epsilon:
        found["success"] = f"epsilon is at least {bound:.3f}, claimed {epsilon:g}; {_differences(runs)}"
    worst = max(runs, key=lambda run: run.divergence / run.rho)
    if worst.divergence > worst.rho * (1.0 + 1e-9):
        found["divergence"] = f"a run's divergence is {worst.divergence:.6g}, its ledger says {worst.rho:.6g}"
    gap, allowed = mean_gap(runs), allowed_gap(runs)
    if gap > allowed:
        found["gap"] = f"the mean gap is {gap:.4g}, allowed {allowed:.4g}"
    evidence = shortfall(runs)
    short = [f"{name} (log likelihood ratio {value:.1f})" for name, value in evidence.items() if value > 0.0]
    if short:
        found["noise"] = f"less noise than the ledger says: {', '.join(short)}"
    return found


def _differences(runs: Sequence[Transcript]) -> str:
    return next((run.differences[0] for run in runs if run.differences), "from released values alone")


# Success -----------------------------------------------------------------------------------------------------------


def epsilon_lower_bound(runs: Sequence[Transcript], delta: float, alpha: float) -> float:
    """A lower confidence bound of level 1 - alpha on epsilon: the better one of two, each of level 1 - alpha / 2."""
    leads = {world: np.array([run.lead for run in runs if run.world == world]) for world in (0, 1)}
    return max(_by_accuracy(leads, delta, alpha / 2.0), _by_threshold(leads, delta, alpha / 2.0))


def _by_accuracy(leads: dict[int, np.ndarray], delta: float, alpha: float) -> float:
    right = sum(int((lead > 0.0).sum()) for lead in leads.values())
    low = _low(right, sum(lead.size for lead in leads.values()), alpha)
    return math.log((low - delta) / (1.0 - low)) if low > delta else -math.inf


def _by_threshold(leads: dict[int, np.ndarray], delta: float, alpha: float) -> float:
    """For both worlds: the best threshold of the first half of the runs, tested on the second."""
    bounds = []
    for world in (0, 1):
        own, other = leads[world], -leads[1 - world]
        half = own.size // 2
        candidates = np.unique(own[:half])[:-1]
        if candidates.size:
            tried = [_ratio(own[:half], other[:half], t, delta, 0.01) for t in candidates]
            best = candidates[int(np.argmax(tried))]
            bounds.append(_ratio(own[half:], other[half:], best, delta, alpha / 2.0))
    return max(bounds, default=-math.inf)


def _ratio(own: np.ndarray, other: np.ndarray, threshold: float, delta: float, alpha: float) -> float:
    """log((P(own > threshold) - delta) / P(other > threshold)), bounded from below with level 1 - alpha."""
    low = _low(int((own > threshold).sum()), own.size, alpha / 2.0)
    high = 1.0 - _low(int((other <= threshold).sum()), other.size, alpha / 2.0)
    return math.log((low - delta) / high) if low > delta else -math.inf


def _low(hits: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson's lower bound on a probability."""
    return float(stats.beta.ppf(alpha, hits, trials - hits + 1)) if hits else 0.0


# Gap and noise -----------------------------------------------------------------------------------------------------


def mean_gap(runs: Sequence[Transcript]) -> float:
    return float(sum(np.mean([run.lead for run in runs if run.world == world]) for world in (0, 1)))


def allowed_gap(runs: Sequence[Transcript]) -> float:
    spent = sum(np.mean([run.rho for run in runs if run.world == world]) for world in (0, 1))
    # The variance of distributed noise is at most 0.025% above that of the claimed sigma (transcripts.py).
    proxy = 1.001 * 4.0 * max(run.budget for run in runs) / (len(runs) // 2)
    return float(spent) + math.sqrt(2.0 * math.log(1.0 / ALPHA) * proxy)


def shortfall(runs: Sequence[Transcript]) -> dict[str, float]:
    """By name of the release, and for all: log likelihood ratio of the short builds, less what an honest one reaches.

    The mean of the ratios for several shares is a ratio too; the names divide ALPHA.
    """
    names = {name for run in runs for name in run.short}
    total = {name: np.sum([run.short[name] for run in runs if name in run.short], axis=0) for name in sorted(names)}
    total["all"] = np.sum(list(total.values()), axis=0)
    needed = math.log(len(total) / ALPHA)
    return {name: float(np.logaddexp.reduce(values) - math.log(len(SHORT))) - needed for name, values in total.items()}
