//! When requests come.

use std::f64::consts::TAU;

use crate::random::Random;

/// How long a server waits for its next request.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    /// One after the other, about as many all the time.
    Even,
    /// Now and then none for long: before these requests, in nanoseconds.
    Stalls(Vec<(u64, u64)>),
    /// Hardly any, and then very many: requests in a burst, and between two.
    Bursts(u64, u64),
    /// Few and many by turns, as by day and night: the period in nanoseconds.
    Daily(u64),
}

impl Load {
    /// Between 2 and 6 stalls, each of 3 to 12 % of the run.
    pub(crate) fn stalls(random: &mut Random, requests: u64, mean_ns: u64) -> Self {
        let run_ns = requests * mean_ns;
        let stall = |random: &mut Random| (random.below(requests), random.between(run_ns / 33, run_ns / 8));
        Self::Stalls((0..random.between(2, 6)).map(|_| stall(random)).collect())
    }

    pub(crate) fn bursts(random: &mut Random) -> Self {
        Self::Bursts(random.between(100, 1000), random.between(20, 100))
    }

    /// Three to eight days in a run.
    pub(crate) fn daily(random: &mut Random, requests: u64, mean_ns: u64) -> Self {
        Self::Daily(requests * mean_ns / random.between(3, 8))
    }

    /// Nanoseconds until this request, which on average are `mean_ns`.
    pub(crate) fn pause_ns(&self, random: &mut Random, request: u64, now_ns: u64, mean_ns: u64) -> u64 {
        let usual = random.between(mean_ns / 2, mean_ns * 3 / 2);
        match self {
            Self::Even => usual,
            Self::Stalls(stalls) => {
                usual + stalls.iter().filter(|(at, _)| *at == request).map(|(_, length)| length).sum::<u64>()
            }
            Self::Bursts(dense, sparse) => {
                // A burst and what is between two take as long as all of them would at the usual rate.
                let between = request % (dense + sparse) >= *dense;
                if between { usual * (dense + sparse - dense / 10) / sparse } else { usual / 10 }
            }
            Self::Daily(period) => {
                let day = (now_ns % period) as f64 / *period as f64;
                (usual as f64 / (1.0 + 0.8 * (TAU * day).sin())) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN_NS: u64 = 30_000_000;

    /// On average a request comes as often as was asked for, stalls aside; and of each load the longest pause is its own.
    #[test]
    fn loads_have_their_mean() {
        let mut random = Random::new(5);
        let stalls = Load::Stalls(vec![(100, 7_000_000_000)]);
        let daily = Load::daily(&mut random, 20_000, MEAN_NS);
        for (load, longest) in [(Load::Even, 45), (stalls, 7000), (Load::Bursts(500, 50), 450), (daily, 200)] {
            let (mut now_ns, mut most) = (0, 0);
            for request in 0..20_000 {
                let pause_ns = load.pause_ns(&mut random, request, now_ns, MEAN_NS);
                now_ns += pause_ns;
                most = most.max(pause_ns);
            }
            let mean = now_ns as f64 / 20_000.0 / MEAN_NS as f64;
            assert!((0.9..1.7).contains(&mean), "{load:?}: {mean}");
            assert!(most / 1_000_000 <= longest + 45 && most / 1_000_000 >= longest * 3 / 4, "{load:?}: {most}");
        }
    }
}
