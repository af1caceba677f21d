//! What became of messages: the agent's page has it.

use crate::agent::metrics::Sample;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All was taken.
    Ok,
    /// Some of it was.
    Partial,
    /// The receiver wants it later.
    Later,
    /// The receiver does not want it.
    Refused,
    /// There was no answer.
    NoAnswer,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Ok, Self::Partial, Self::Later, Self::Refused, Self::NoAnswer];

    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Partial => "partial",
            Self::Later => "later",
            Self::Refused => "refused",
            Self::NoAnswer => "no_answer",
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    requests: [u64; Outcome::ALL.len()],
    /// Data points and log records.
    pub(super) dropped: u64,
}

impl Counts {
    pub(super) fn request(&mut self, result: Outcome) {
        self.requests[result as usize] += 1;
    }

    #[cfg(test)]
    pub(super) const fn of(&self, result: Outcome) -> u64 {
        self.requests[result as usize]
    }

    pub(super) fn samples(&self) -> impl Iterator<Item = Sample> {
        let requests = Outcome::ALL.into_iter().zip(self.requests).map(|(result, count)| {
            Sample::whole("memscope_agent_otlp_requests", vec![("result", result.name().to_owned())], count)
        });
        requests.chain([Sample::whole("memscope_agent_otlp_dropped", Vec::new(), self.dropped)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_their_samples() {
        let mut counts = Counts { dropped: 7, ..Counts::default() };
        counts.request(Outcome::Later);
        counts.request(Outcome::NoAnswer);
        counts.request(Outcome::NoAnswer);
        let lines = crate::agent::page::write(&counts.samples().collect::<Vec<_>>(), crate::agent::page::Format::Text);
        let lines: Vec<&str> = lines.lines().filter(|line| !line.starts_with('#')).collect();
        let of = |result, count| format!("memscope_agent_otlp_requests_total{{result=\"{result}\"}} {count}");
        let mut expected = [("ok", 0), ("partial", 0), ("later", 1), ("refused", 0), ("no_answer", 2)]
            .map(|(result, count)| of(result, count))
            .to_vec();
        expected.push("memscope_agent_otlp_dropped_total 7".to_owned());
        assert_eq!(lines, expected);
    }
}
