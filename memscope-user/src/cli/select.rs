//! `--filter`, `--since` and `--until`: their meaning, and the options of the commands that read files.

use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;

use super::args::PART;
use super::values;
use crate::analyses::decompose::RuleSet;
use crate::analyses::select::{Condition, Filter, Selection, Test, When, Window};
use crate::model::Device;

/// Smaller numbers are no time of a dump: it would be of the first days of 1970.
const LEAST_TIME_NS: u64 = 1_000_000_000_000_000;
/// The longer ones first: `>=` is no `>`.
const OPERATORS: [&str; 8] = ["!=", "!~", ">=", "<=", "=", "~", ">", "<"];

/// Which blocks.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct FilterArgs {
    /// Only blocks that match EXPR (repeatable, AND): 'size>=1M', 'layer=PTA', 'owner~kv', 'tid=123', 'pid=7', 'device=0',
    /// 'stack~forward'.
    #[arg(help_heading = PART, long = "filter", value_name = "EXPR", value_parser = condition)]
    pub conditions: Vec<Condition>,
}

/// Which part of a run.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SelectArgs {
    /// Start of the time window; blocks live at that time are included. 30s or 5m after the first event, a time like
    /// 2026-11-21T10:00:00Z, or nanoseconds as in dumps.
    #[arg(help_heading = PART, long, value_name = "TIME", value_parser = when)]
    pub since: Option<When>,
    /// End of the time window.
    #[arg(help_heading = PART, long, value_name = "TIME", value_parser = when)]
    pub until: Option<When>,
    /// Which blocks.
    #[command(flatten)]
    pub blocks: FilterArgs,
}

impl FilterArgs {
    /// The filter; these rules name owners, or the built-in ones.
    pub(super) fn filter(&self, rules: Option<&Arc<RuleSet>>) -> Filter {
        Filter { conditions: self.conditions.clone(), rules: rules.cloned() }
    }
}

impl SelectArgs {
    /// When, for analyses that look at blocks themselves.
    pub(super) fn window(&self) -> Selection {
        let window = Window { since: self.since, until: self.until };
        Selection { window, filter: Filter::default() }
    }

    /// The selection, as the options spell it; `None`: all of the run.
    pub(super) fn text(&self) -> Option<String> {
        let mut parts = Vec::new();
        parts.extend(self.since.map(|since| format!("--since {}", text_of(since))));
        parts.extend(self.until.map(|until| format!("--until {}", text_of(until))));
        if !self.blocks.conditions.is_empty() {
            parts.push(format!("--filter ({})", self.blocks.conditions.len()));
        }
        (!parts.is_empty()).then(|| parts.join(" "))
    }

    /// When, and which blocks.
    pub(super) fn selection(&self, rules: Option<&Arc<RuleSet>>) -> Selection {
        Selection { filter: self.blocks.filter(rules), ..self.window() }
    }
}

/// A moment as its option takes it.
fn text_of(when: When) -> String {
    match when {
        When::At(time_ns) => time_ns.to_string(),
        When::After(time) => format!("{}s", time.as_secs_f64()),
    }
}

/// A moment of a run.
pub(super) fn when(text: &str) -> Result<When, String> {
    let wanted = || format!("`{text}` is not a time like 30s, 5m, 2026-11-21T10:00:00Z, or nanoseconds as in dumps");
    if text.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(time_ns @ LEAST_TIME_NS..) = text.parse()
    {
        return Ok(When::At(time_ns));
    }
    if text.contains('-') {
        let time: Timestamp = text.parse().map_err(|_| wanted())?;
        return u64::try_from(time.as_nanosecond()).map(When::At).map_err(|_| wanted());
    }
    // A number too long for nanoseconds is a time, but beyond any trace.
    let after = values::interval(text).map(When::After);
    after.map_err(|reason| if reason.ends_with(values::LONGEST) { reason } else { wanted() })
}

/// A condition: field, operator, value.
pub(crate) fn condition(text: &str) -> Result<Condition, String> {
    let found = text.find(['!', '=', '~', '<', '>']);
    let split = found.and_then(|at| {
        let operator = OPERATORS.into_iter().find(|operator| text[at..].starts_with(operator))?;
        Some((text[..at].trim(), operator, text[at + operator.len()..].trim()))
    });
    let Some((field, operator, value)) = split else {
        return Err(format!("`{text}` has no comparison: write, for instance, size>=1M or owner~kv"));
    };
    let (operators, parse): (&[&str], Parse) = match field {
        "size" => (&["=", "!=", "<", "<=", ">", ">="], of_size),
        "owner" => (&["=", "!=", "~", "!~"], |operator, value| Ok(of_owner(operator, value))),
        "layer" => (&["=", "!="], |_, value| Ok(Test::Layer(value.to_owned()))),
        "tid" => (&["=", "!="], |_, value| values::pid(value).map(Test::Tid).map_err(|_| not(value, "a thread id"))),
        "pid" => (&["=", "!="], |_, value| values::pid(value).map(Test::Pid).map_err(|_| not(value, "a process id"))),
        "device" => (&["=", "!="], of_device),
        "stack" => (&["~", "!~"], |_, value| Ok(Test::StackHas(value.to_owned()))),
        _ => return Err(format!("`{field}` is not one of size, owner, layer, tid, pid, device, stack")),
    };
    if !operators.contains(&operator) {
        return Err(format!("`{field}` cannot be compared by `{operator}`, only by {}", operators.join(" ")));
    }
    if value.is_empty() && !(field == "owner" && matches!(operator, "=" | "!=")) {
        return Err(format!("nothing follows `{field}{operator}`"));
    }
    Ok(Condition { test: parse(operator, value)?, wanted: !matches!(operator, "!=" | "!~" | "<=" | ">=") })
}

type Parse = fn(&str, &str) -> Result<Test, String>;

fn not(value: &str, wanted: &str) -> String {
    format!("`{value}` is not {wanted}")
}

/// Not less means as large or larger.
fn of_size(operator: &str, value: &str) -> Result<Test, String> {
    let bytes = values::size(value)?;
    Ok(match operator {
        "<" | ">=" => Test::Below(bytes),
        ">" | "<=" => Test::Above(bytes),
        _ => Test::Size(bytes),
    })
}

fn of_owner(operator: &str, value: &str) -> Test {
    if operator.ends_with('~') { Test::OwnerHas(value.to_owned()) } else { Test::Owner(value.to_owned()) }
}

fn of_device(_: &str, value: &str) -> Result<Test, String> {
    let number = value.strip_prefix("npu:").unwrap_or(value);
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    match number.parse() {
        Ok(number) if plain => Ok(Test::Device(Device::Npu(number))),
        _ if value == "cpu" => Ok(Test::Device(Device::Cpu)),
        _ => Err(not(value, "a device: write its number, npu:<number> or cpu")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn conditions_of_every_field() {
        let text = str::to_owned;
        for (expression, test, wanted) in [
            ("size>=1M", Test::Below(1 << 20), false),
            ("size<4096", Test::Below(4096), true),
            ("size > 2k", Test::Above(2048), true),
            ("size<=0", Test::Above(0), false),
            ("size=512", Test::Size(512), true),
            ("size!=512", Test::Size(512), false),
            ("owner~kv", Test::OwnerHas(text("kv")), true),
            ("owner!~kv", Test::OwnerHas(text("kv")), false),
            ("owner=PTA@ops@aten", Test::Owner(text("PTA@ops@aten")), true),
            ("owner=", Test::Owner(String::new()), true),
            ("layer=PTA", Test::Layer(text("PTA")), true),
            ("layer!=HAL", Test::Layer(text("HAL")), false),
            ("tid=123", Test::Tid(123), true),
            ("pid!=7", Test::Pid(7), false),
            ("device=0", Test::Device(Device::Npu(0)), true),
            ("device=npu:12", Test::Device(Device::Npu(12)), true),
            ("device!=cpu", Test::Device(Device::Cpu), false),
            // Only the first operator counts: frames have their own.
            ("stack~operator>=", Test::StackHas(text("operator>=")), true),
            ("stack!~a = b", Test::StackHas(text("a = b")), false),
        ] {
            assert_eq!(condition(expression), Ok(Condition { test, wanted }), "{expression}");
        }
    }

    /// The mistake, its place, and a correct form.
    #[test]
    fn faults_are_explained() {
        for (expression, parts) in [
            ("", ["no comparison", "size>=1M"]),
            ("size", ["`size` has no comparison", "size>=1M"]),
            ("a!b", ["`a!b` has no comparison", "owner~kv"]),
            ("color=red", ["`color`", "size, owner, layer, tid, pid, device, stack"]),
            ("=3", ["``", "size, owner"]),
            ("size~3", ["`size` cannot be compared by `~`", "= != < <= > >="]),
            ("stack=f", ["`stack` cannot be compared by `=`", "only by ~ !~"]),
            ("tid>3", ["`tid` cannot be compared by `>`", "only by = !="]),
            ("size>=1T", ["`1T` is not a size", "4096, 64K or 2M"]),
            ("size>=", ["nothing follows", "`size>=`"]),
            ("stack~", ["nothing follows", "`stack~`"]),
            ("device=npu", ["`npu` is not a device", "npu:<number>"]),
            ("device=+1", ["`+1` is not a device", "cpu"]),
            ("pid=0", ["`0`", "a process id"]),
            ("tid=x", ["`x`", "a thread id"]),
        ] {
            let fault = condition(expression).expect_err(expression);
            assert!(parts.iter().all(|part| fault.contains(part)), "{expression}: {fault}");
        }
    }

    #[test]
    fn times_of_every_kind() {
        // 2026-11-21 10:00 UTC is 20,778 days and 10 hours after the epoch.
        let ten = 1_795_255_200_000_000_000;
        for (text, expected) in [
            ("30s", When::After(Duration::from_secs(30))),
            ("30", When::After(Duration::from_secs(30))),
            ("1.5m", When::After(Duration::from_secs(90))),
            ("0", When::After(Duration::ZERO)),
            ("1795255200000000000", When::At(ten)),
            ("2026-11-21T10:00:00Z", When::At(ten)),
            ("2026-11-21T11:00:00.25+01:00", When::At(ten + 250_000_000)),
        ] {
            assert_eq!(when(text), Ok(expected), "{text}");
        }
        for bad in ["", "now", "5d", "-3s", "10:00", "2026-11-21", "2026-11-21T10:00:00", "1900-01-01T00:00:00Z", "inf"]
        {
            let fault = when(bad).expect_err(bad);
            assert!(fault.contains("30s, 5m, 2026-11-21T10:00:00Z, or nanoseconds"), "{bad}: {fault}");
        }
    }
}
