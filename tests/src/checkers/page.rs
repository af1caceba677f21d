//! A strict reader of pages of numbers: Prometheus' text format 0.0.4, and `OpenMetrics` 1.0 as far as our pages use it. Whatever is not allowed
//! is an error.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a sample.
pub type Labels = BTreeMap<String, String>;

/// A page that has been read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Types by family.
    pub types: BTreeMap<String, String>,
    /// Values by name of the sample and labels.
    pub samples: BTreeMap<(String, Labels), f64>,
}

impl Page {
    /// The sum of all samples of a name that have these labels; `None` if there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |found: &Labels| labels.iter().all(|(name, value)| found.get(*name).is_some_and(|it| it == value));
        let fitting = self.samples.iter().filter(|((of, found), _)| of == name && has(found));
        fitting.map(|(_, value)| *value).reduce(|sum, value| sum + value)
    }
}

impl Page {
    /// The same of whole numbers; `None` also where one is not whole.
    #[must_use]
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> Option<u64> {
        let sum = self.sum(name, labels)?;
        // Whole numbers of this size have a float of their own.
        (sum.fract().abs() < f64::EPSILON && (0.0..9e15).contains(&sum)).then_some(sum as u64)
    }
}

/// Reads a page.
///
/// # Errors
///
/// The first line that is wrong, and why.
pub fn read(text: &str, open_metrics: bool) -> Result<Page, String> {
    let body = match (text.strip_suffix("# EOF\n"), open_metrics) {
        (Some(body), true) => body,
        (None, false) => text,
        (None, true) => return Err("no `# EOF` at the end".to_owned()),
        (Some(_), false) => return Err("`# EOF` in a text page".to_owned()),
    };
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let mut page = Page::default();
    let mut family = Family::default();
    let mut closed = BTreeSet::new();
    for line in body.lines() {
        let read = match line.strip_prefix("# ") {
            Some(comment) => head(comment, &mut family, &mut page, &mut closed, open_metrics),
            None => sample(line, &family, &mut page, open_metrics),
        };
        read.map_err(|why| format!("{why}: {line}"))?;
    }
    histograms(&page)?;
    Ok(page)
}

#[derive(Default)]
struct Family {
    name: String,
    kind: Option<String>,
}

fn head(
    comment: &str,
    family: &mut Family,
    page: &mut Page,
    closed: &mut BTreeSet<String>,
    open_metrics: bool,
) -> Result<(), String> {
    let (word, rest) = comment.split_once(' ').ok_or("a comment of one word")?;
    let (name, rest) = rest.split_once(' ').ok_or("no text behind the name")?;
    if !is_name(name) {
        return Err(format!("`{name}` is no name"));
    }
    if name != family.name {
        if !closed.insert(name.to_owned()) {
            return Err(format!("the family `{name}` comes twice"));
        }
        *family = Family { name: name.to_owned(), kind: None };
    }
    match word {
        "HELP" => Ok(()),
        "TYPE" => {
            let open = ["gauge", "counter", "histogram", "info"];
            let text = ["gauge", "counter", "histogram"];
            let known = if open_metrics { &open[..] } else { &text[..] };
            if !known.contains(&rest) || family.kind.replace(rest.to_owned()).is_some() {
                return Err(format!("`{rest}` is no type, or comes twice"));
            }
            page.types.insert(name.to_owned(), rest.to_owned());
            Ok(())
        }
        "UNIT" if open_metrics && name.ends_with(&format!("_{rest}")) => Ok(()),
        _ => Err("a comment that is none of these formats".to_owned()),
    }
}

fn sample(line: &str, family: &Family, page: &mut Page, open_metrics: bool) -> Result<(), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, rest) = line.split_at(end);
    let kind = family.kind.as_deref().ok_or("a sample before its type")?;
    let suffix = name.strip_prefix(family.name.as_str()).ok_or("a sample of another family")?;
    let suffixes: &[&str] = match (kind, open_metrics) {
        ("counter", true) => &["_total"],
        ("info", true) => &["_info"],
        ("histogram", _) => &["_bucket", "_count", "_sum"],
        _ => &[""],
    };
    if !suffixes.contains(&suffix) || kind == "counter" && !name.ends_with("_total") {
        return Err(format!("`{name}` is no sample of a {kind}"));
    }
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    if suffix == "_bucket" && !labels.contains_key("le") {
        return Err("a bucket without a bound".to_owned());
    }
    let value = value.strip_prefix(' ').ok_or("no space before the value")?;
    let number = number(value).ok_or_else(|| format!("`{value}` is no number"))?;
    if kind != "gauge" && number < 0.0 {
        return Err("a count below 0".to_owned());
    }
    let old = page.samples.insert((name.to_owned(), labels), number);
    old.map_or(Ok(()), |_| Err("the sample comes twice".to_owned()))
}

/// Labels up to the brace that ends them, and what is behind it.
fn labels(mut text: &str) -> Result<(Labels, &str), String> {
    let mut found = Labels::new();
    loop {
        let (name, rest) = text.split_once("=\"").ok_or("no value of a label")?;
        if !is_name(name) || name.contains(':') {
            return Err(format!("`{name}` is no label"));
        }
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().ok_or("a value without an end")? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('"' | '\\'))) => c,
                    _ => return Err("an escape that is none".to_owned()),
                }),
                (_, c) => value.push(c),
            }
        };
        if found.insert(name.to_owned(), value).is_some() {
            return Err(format!("the label `{name}` comes twice"));
        }
        let behind = &rest[end + 1..];
        if let Some(behind) = behind.strip_prefix('}') {
            return Ok((found, behind));
        }
        text = behind.strip_prefix(',').ok_or("no comma between labels")?;
    }
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        _ => text.starts_with(|c: char| c.is_ascii_digit() || c == '-').then(|| text.parse().ok())?,
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':');
    text.starts_with(is_letter) && text.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

/// Buckets do not fall, the last is without a bound, and is the count.
fn histograms(page: &Page) -> Result<(), String> {
    let mut found: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in &page.samples {
        let Some(family) = name.strip_suffix("_bucket") else { continue };
        let mut labels = labels.clone();
        let bound = labels.remove("le").and_then(|bound| number(&bound)).ok_or("a bound that is no number")?;
        found.entry((family.to_owned(), labels)).or_default().push((bound, *value));
    }
    for ((family, labels), mut buckets) in found {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let count = page.samples.get(&(format!("{family}_count"), labels.clone()));
        let sum = page.samples.get(&(format!("{family}_sum"), labels));
        let falls = buckets.windows(2).any(|pair| pair[1].1 < pair[0].1);
        let last = buckets.last().filter(|(bound, _)| bound.is_infinite()).map(|(_, value)| value);
        if falls || last.is_none() || last != count || sum.is_none() {
            return Err(format!("buckets of {family} make no sense"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_pages_are_read() {
        let text = "# HELP a Help.\n# TYPE a gauge\na{x=\"1\\n\\\"\",y=\"\"} 2.5\na 3\n# TYPE b_total counter\nb_total 7\n\
            # TYPE h histogram\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_count 2\nh_sum 9\n";
        let page = read(text, false).expect("a page");
        assert_eq!(
            (page.sum("a", &[("x", "1\n\"")]), page.sum("a", &[]), page.sum("c", &[])),
            (Some(2.5), Some(5.5), None)
        );
        let open = "# TYPE b counter\nb_total 7\n# TYPE i info\ni_info{v=\"1\"} 1\n# TYPE m_bytes gauge\n# UNIT m_bytes bytes\nm_bytes 1\n# EOF\n";
        read(open, true).expect("a page");
    }

    #[test]
    fn bad_pages_are_refused() {
        let wrong = [
            "a 1\n",
            "# TYPE a gauge\na 1",
            "# TYPE a gauge\na x\n",
            "# TYPE a gauge\na{x=\"1} 1\n",
            "# TYPE a gauge\na{x=\"1\",x=\"2\"} 1\n",
            "# TYPE a gauge\na{x=\"\\q\"} 1\n",
            "# TYPE a gauge\na 1\na 1\n",
            "# TYPE a gauge\n# TYPE b gauge\nb 1\n# TYPE a gauge\na 1\n",
            "# TYPE a counter\na 1\n",
            "# TYPE a_total counter\na_total -1\n",
            "# TYPE a info\na_info 1\n",
            "# TYPE 1a gauge\n1a 1\n",
            "# TYPE h histogram\nh_bucket{le=\"1.0\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_count 2\nh_sum 9\n",
            "# TYPE h histogram\nh_bucket{le=\"1.0\"} 1\nh_count 1\nh_sum 9\n",
            "# TYPE a gauge\na 1\n# EOF\n",
        ];
        for text in wrong {
            assert!(read(text, false).is_err(), "{text}");
        }
        assert!(read("# TYPE b_total counter\nb_total 7\n# EOF\n", true).is_err());
        assert!(read("# TYPE a gauge\na 1\n", true).is_err());
    }
}
