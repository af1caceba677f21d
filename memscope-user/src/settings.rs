//! Settings of a program's environment that advice depends on. No other variable is read: an environment holds secrets.

/// Their names.
pub const NAMES: [&str; 4] =
    ["PYTORCH_NPU_ALLOC_CONF", "TASK_QUEUE_ENABLE", "HCCL_BUFFSIZE", "MULTI_STREAM_MEMORY_REUSE"];

/// Longest value that is kept, in bytes; a longer one is cut.
pub const MAX_VALUE: usize = 512;

/// The settings in an environment as `/proc/PID/environ` has it, in the order of [`NAMES`]. Of a variable that is there twice the first
/// counts, as for `getenv`.
#[must_use]
pub fn of_environment(environment: &[u8]) -> Vec<(String, String)> {
    let value = |name: &str| {
        let pairs = environment.split(|byte| *byte == 0);
        let mut values = pairs.filter_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        values.next().map(|value| kept(&String::from_utf8_lossy(value)))
    };
    NAMES.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect()
}

/// The value as it is kept.
#[must_use]
pub fn kept(value: &str) -> String {
    value[..value.floor_char_boundary(MAX_VALUE)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of all that an environment holds the four names come out, each as the program's `getenv` gives it.
    #[test]
    fn other_variables_are_not_kept() {
        let environment = b"TOKEN=secret\0HCCL_BUFFSIZE=120\0XHCCL_BUFFSIZE=1\0HCCL_BUFFSIZE_=2\0HCCL_BUFFSIZE=7\0\
            PYTORCH_NPU_ALLOC_CONF=a:1,b=2\0TASK_QUEUE_ENABLE\0MULTI_STREAM_MEMORY_REUSE=\0";
        let found = of_environment(environment);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [
            pair("PYTORCH_NPU_ALLOC_CONF", "a:1,b=2"),
            pair("HCCL_BUFFSIZE", "120"),
            pair("MULTI_STREAM_MEMORY_REUSE", ""),
        ];
        assert_eq!(found, expected);
        assert_eq!(of_environment(b""), []);
    }

    /// A value of any length and of any bytes is bounded.
    #[test]
    fn values_are_bounded() {
        let mut environment = b"HCCL_BUFFSIZE=".to_vec();
        environment.extend([0xff; 4000]);
        let [(_, value)] = &of_environment(&environment)[..] else { panic!("one") };
        // Each byte that is no text became a character of three bytes; 170 of them are 510.
        assert_eq!((value.len(), value.chars().count()), (510, 170));
    }
}
