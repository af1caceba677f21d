//! The page of numbers: Prometheus' text format 0.0.4 and `OpenMetrics` 1.0, of the same samples.

use std::fmt::Write as _;

use super::metrics::{FAMILIES, Family, Kind, Number, Sample};

/// Longest value of a label; what is beyond is cut.
const MAX_VALUE_BYTES: usize = 63;

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text 0.0.4.
    Text,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl Format {
    /// What a client accepts.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// As its header says it.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes a page. Families without samples are left out.
#[must_use]
pub fn write(samples: &[Sample], format: Format) -> String {
    let mut page = String::new();
    for family in FAMILIES {
        let mut of_family = samples.iter().filter(|sample| sample.family == family.name).peekable();
        if of_family.peek().is_some() {
            head(&mut page, family, format);
            of_family.for_each(|sample| one(&mut page, family, sample));
        }
    }
    if format == Format::OpenMetrics {
        page.push_str("# EOF\n");
    }
    page
}

fn head(page: &mut String, family: &Family, format: Format) {
    let Family { name, kind, unit, help } = family;
    let (suffix, word) = match (format, kind) {
        (Format::Text, Kind::Info) => ("_info", "gauge"),
        (Format::Text, Kind::Counter) => ("_total", "counter"),
        _ => ("", kind.name()),
    };
    // Memory takes everything.
    let _ = writeln!(page, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {word}");
    if let (Format::OpenMetrics, Some(unit)) = (format, unit) {
        let _ = writeln!(page, "# UNIT {name} {unit}");
    }
}

fn one(page: &mut String, family: &Family, sample: &Sample) {
    let name = family.name;
    match &sample.number {
        Number::Histogram { bounds, counts, sum } => {
            let mut below = 0;
            let ends = bounds.iter().map(|bound| format!("{bound}.0")).chain(["+Inf".to_owned()]);
            for (end, count) in ends.zip(counts) {
                below += count;
                line(page, name, "_bucket", sample, Some(("le", &end)), &below.to_string());
            }
            line(page, name, "_count", sample, None, &below.to_string());
            line(page, name, "_sum", sample, None, &sum.to_string());
        }
        Number::Whole(number) => line(page, name, family.kind.suffix(), sample, None, &number.to_string()),
        Number::Real(number) => line(page, name, family.kind.suffix(), sample, None, &real(*number)),
    }
}

/// As both formats have it.
fn real(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        number.to_string()
    }
}

fn line(page: &mut String, name: &str, suffix: &str, sample: &Sample, more: Option<(&str, &str)>, value: &str) {
    page.push_str(name);
    page.push_str(suffix);
    let labels = sample.labels.iter().map(|(name, value)| (*name, value.as_str())).chain(more);
    for (number, (name, value)) in labels.enumerate() {
        page.push(if number == 0 { '{' } else { ',' });
        page.push_str(name);
        page.push_str("=\"");
        escape(page, value);
        page.push('"');
    }
    if !sample.labels.is_empty() || more.is_some() {
        page.push('}');
    }
    page.push(' ');
    page.push_str(value);
    page.push('\n');
}

/// Characters of a value, which may come from a traced program: few, and none that controls a reader but the end of a line.
pub(super) fn bounded(value: &str) -> impl Iterator<Item = char> {
    let value = &value[..value.floor_char_boundary(MAX_VALUE_BYTES)];
    value.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c })
}

/// A value stays within its quotes, and on its line.
fn escape(page: &mut String, value: &str) {
    for c in bounded(value) {
        match c {
            '"' => page.push_str("\\\""),
            '\\' => page.push_str("\\\\"),
            '\n' => page.push_str("\\n"),
            c => page.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Sample> {
        vec![
            Sample::whole("memscope_memory_live_bytes", vec![("id", "0".into()), ("layer", "hal".into())], 4096),
            Sample::real("memscope_agent_overhead_ratio", Vec::new(), 0.0125),
            Sample::whole("memscope_allocations", vec![("id", "0".into())], 3),
            Sample::whole("memscope_process", vec![("comm", "a\"b\\c\nd\u{1b}".into())], 1),
            Sample {
                family: "memscope_allocation_size_bytes",
                labels: vec![("id", "0".into())],
                number: Number::Histogram { bounds: &[512, 4096], counts: vec![1, 2, 4], sum: 99_000 },
                start_ns: None,
            },
        ]
    }

    /// Every line, written by hand.
    #[test]
    fn page_in_both_formats() {
        let lines = |format| -> Vec<String> {
            write(&samples(), format).lines().filter(|line| !line.starts_with("# HELP")).map(str::to_owned).collect()
        };
        let body = [
            "memscope_memory_live_bytes{id=\"0\",layer=\"hal\"} 4096",
            "memscope_process_info{comm=\"a\\\"b\\\\c\\nd\u{fffd}\"} 1",
            "memscope_allocations_total{id=\"0\"} 3",
            "memscope_allocation_size_bytes_bucket{id=\"0\",le=\"512.0\"} 1",
            "memscope_allocation_size_bytes_bucket{id=\"0\",le=\"4096.0\"} 3",
            "memscope_allocation_size_bytes_bucket{id=\"0\",le=\"+Inf\"} 7",
            "memscope_allocation_size_bytes_count{id=\"0\"} 7",
            "memscope_allocation_size_bytes_sum{id=\"0\"} 99000",
            "memscope_agent_overhead_ratio 0.0125",
        ];
        let text = lines(Format::Text);
        let values: Vec<&str> = text.iter().map(String::as_str).filter(|line| !line.starts_with('#')).collect();
        assert_eq!(values, body);
        assert!(text.contains(&"# TYPE memscope_allocations_total counter".to_owned()), "{text:#?}");
        assert!(text.contains(&"# TYPE memscope_process_info gauge".to_owned()), "{text:#?}");
        let open = lines(Format::OpenMetrics);
        let values: Vec<&str> = open.iter().map(String::as_str).filter(|line| !line.starts_with('#')).collect();
        assert_eq!(values, body);
        assert!(open.contains(&"# TYPE memscope_allocations counter".to_owned()), "{open:#?}");
        assert!(open.contains(&"# UNIT memscope_memory_live_bytes bytes".to_owned()), "{open:#?}");
        assert_eq!(open.last().map(String::as_str), Some("# EOF"));
    }

    #[test]
    fn formats_are_asked_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Text);
    }

    /// A long value is cut, at a character.
    #[test]
    fn values_are_bounded() {
        let mut page = String::new();
        escape(&mut page, &"ä".repeat(100));
        assert_eq!(page, "ä".repeat(31));
    }
}
