//! Which processes are traced: the first rule that fits decides.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Characters of a pattern.
const MAX_PATTERN: usize = 256;

/// What is known of a process when a rule is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Short name of its program.
    pub command: String,
    /// Name of its user, or its number where there is no name.
    pub user: String,
    /// Number of its user.
    pub uid: u32,
    /// Kubernetes namespace, if it is known.
    pub namespace: Option<String>,
    /// Name of its pod, if it is known.
    pub pod: Option<String>,
    /// UID of its pod.
    pub pod_uid: Option<String>,
    /// Name of its container, if it is known.
    pub container: Option<String>,
    /// Number of its container.
    pub container_id: Option<String>,
    /// Labels of its pod, if the container runtime is asked.
    pub labels: BTreeMap<String, String>,
}

/// Whether a process is traced.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is.
    #[default]
    Select,
    /// It is not.
    Exclude,
}

/// Rules in their order.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// For processes that no rule fits.
    pub otherwise: Action,
    /// The rules.
    pub list: Vec<Rule>,
}

/// One rule. It fits a process for which each given pattern does: `*` stands for any characters. A process without a pod, a container or
/// a namespace fits no pattern of these but the empty one.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// What becomes of a process that it fits.
    pub action: Action,
    /// Short name of the program.
    pub command: Option<Pattern>,
    /// Name or number of the user.
    pub user: Option<Pattern>,
    /// Kubernetes namespace.
    pub namespace: Option<Pattern>,
    /// Name or UID of the pod.
    pub pod: Option<Pattern>,
    /// Name of the container.
    pub container: Option<Pattern>,
    /// Number of the container, or its beginning.
    pub container_id: Option<Pattern>,
    /// Labels of the pod, each with a pattern for its value. The empty pattern fits a pod without that label, too, and no pod.
    pub labels: BTreeMap<String, Pattern>,
}

/// A text with `*` for any characters.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Pattern(String);

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!("a pattern may have {MAX_PATTERN} bytes, this one has {}", text.len()));
        }
        Ok(Self(text))
    }
}

impl Pattern {
    /// Whether it fits all of a text.
    #[must_use]
    pub fn fits(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let mut parts: Vec<&str> = parts.collect();
        let Some(last) = parts.pop() else { return rest.is_empty() };
        // The earliest place of each part leaves most room for the others.
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    fn fits_known(&self, text: Option<&str>) -> bool {
        text.map_or(self.0.is_empty(), |text| self.fits(text))
    }
}

impl Rule {
    fn fits(&self, facts: &Facts) -> bool {
        let all = |pattern: &Option<Pattern>, fits: &dyn Fn(&Pattern) -> bool| pattern.as_ref().is_none_or(fits);
        all(&self.command, &|pattern| pattern.fits(&facts.command))
            && all(&self.user, &|pattern| pattern.fits(&facts.user) || pattern.fits(&facts.uid.to_string()))
            && all(&self.namespace, &|pattern| pattern.fits_known(facts.namespace.as_deref()))
            && all(&self.pod, &|pattern| {
                pattern.fits_known(facts.pod.as_deref().or(facts.pod_uid.as_deref()))
                    || facts.pod_uid.as_deref().is_some_and(|uid| pattern.fits(uid))
            })
            && all(&self.container, &|pattern| pattern.fits_known(facts.container.as_deref()))
            && all(&self.container_id, &|pattern| {
                pattern.fits_known(facts.container_id.as_deref())
                    || facts
                        .container_id
                        .as_deref()
                        .is_some_and(|id| !pattern.0.is_empty() && id.starts_with(&pattern.0))
            })
            && self.labels.iter().all(|(key, pattern)| pattern.fits_known(facts.labels.get(key).map(String::as_str)))
    }
}

impl Rules {
    /// What becomes of a process.
    #[must_use]
    pub fn decide(&self, facts: &Facts) -> Action {
        self.list.iter().find(|rule| rule.fits(facts)).map_or(self.otherwise, |rule| rule.action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::try_from(text.to_owned()).expect("a pattern")
    }

    #[test]
    fn patterns_fit_whole_texts() {
        let cases = [
            ("python", "python", true),
            ("python", "python3", false),
            ("python*", "python3", true),
            ("*thon", "python", true),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*b*b*", "abcb", true),
            ("*b*b*", "abc", false),
        ];
        for (text, with, fits) in cases {
            assert_eq!(pattern(text).fits(with), fits, "{text} {with}");
        }
        assert!(Pattern::try_from("x".repeat(MAX_PATTERN + 1)).is_err());
    }

    fn rules(text: &str) -> Rules {
        toml::from_str(text).expect("rules")
    }

    fn facts(command: &str, namespace: Option<&str>) -> Facts {
        Facts {
            command: command.to_owned(),
            user: "alice".to_owned(),
            uid: 1000,
            namespace: namespace.map(str::to_owned),
            pod_uid: namespace.map(|_| "5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8".to_owned()),
            container_id: namespace.map(|_| "9ec39b91f3d7".to_owned()),
            ..Facts::default()
        }
    }

    /// The first that fits decides; without any, the last word.
    #[test]
    fn first_fitting_rule_decides() {
        let rules = rules(
            "otherwise = \"exclude\"\n\
             [[list]]\naction = \"exclude\"\nnamespace = \"kube-*\"\n\
             [[list]]\nnamespace = \"*\"\n\
             [[list]]\ncommand = \"python*\"\nuser = \"1000\"\n",
        );
        assert_eq!(rules.decide(&facts("server", Some("kube-system"))), Action::Exclude);
        assert_eq!(rules.decide(&facts("server", Some("train"))), Action::Select);
        assert_eq!(rules.decide(&facts("python3", None)), Action::Select);
        assert_eq!(rules.decide(&facts("server", None)), Action::Exclude);
        assert_eq!(rules.decide(&Facts { uid: 7, ..facts("python3", None) }), Action::Exclude);
        assert_eq!(Rules::default().decide(&facts("x", None)), Action::Select);
    }

    /// The empty pattern is for processes of no container.
    #[test]
    fn host_processes_have_no_container() {
        let rules = rules("[[list]]\naction = \"exclude\"\ncontainer_id = \"\"\n[[list]]\ncontainer_id = \"9ec3\"\n");
        assert_eq!(rules.decide(&facts("x", None)), Action::Exclude);
        assert_eq!(rules.decide(&facts("x", Some("a"))), Action::Select);
    }

    /// All labels of a rule fit, or it does not; the empty pattern is for pods without a label.
    #[test]
    fn pods_are_chosen_by_labels() {
        let rules = rules(
            "otherwise = \"exclude\"\n\
             [[list]]\nlabels = { app = \"vllm*\", tier = \"prod\" }\n\
             [[list]]\nlabels = { \"app.kubernetes.io/name\" = \"train\", tier = \"\" }\n",
        );
        let with = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            rules.decide(&Facts { labels, ..facts("x", Some("a")) })
        };
        assert_eq!(with(&[("app", "vllm-0.18"), ("tier", "prod"), ("zone", "1")]), Action::Select);
        assert_eq!(with(&[("app", "vllm-0.18"), ("tier", "test")]), Action::Exclude);
        assert_eq!(with(&[("app", "vllm-0.18")]), Action::Exclude);
        assert_eq!(with(&[("app.kubernetes.io/name", "train")]), Action::Select);
        assert_eq!(with(&[("app.kubernetes.io/name", "train"), ("tier", "prod")]), Action::Exclude);
        assert_eq!(with(&[]), Action::Exclude);
    }

    /// A pod without a name is chosen by its UID.
    #[test]
    fn pods_are_chosen_by_name_or_uid() {
        let rules = rules("otherwise = \"exclude\"\n[[list]]\npod = \"5759a1ae-*\"\n[[list]]\npod = \"vllm-*\"\n");
        assert_eq!(rules.decide(&facts("x", Some("a"))), Action::Select);
        let named = Facts { pod: Some("vllm-0".to_owned()), pod_uid: None, ..facts("x", Some("a")) };
        assert_eq!(rules.decide(&named), Action::Select);
        let other = Facts { pod: Some("train-0".to_owned()), pod_uid: None, ..facts("x", Some("a")) };
        assert_eq!(rules.decide(&other), Action::Exclude);
    }
}
