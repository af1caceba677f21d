use super::*;

/// An empty file has all defaults, and they make sense.
#[test]
fn defaults_are_valid() {
    let config = Config::parse("").expect("settings");
    assert_eq!(config, Config::default());
    config.check().expect("valid");
    assert_eq!(config.listen().expect("an address"), Some(SocketAddr::from(([127, 0, 0, 1], 9478))));
}

#[test]
fn mistyped_names_are_told() {
    let refused = Config::parse("[metrics]\nlisten = \"\"\ninterval_second = 5\n").expect_err("refused");
    assert!(refused.starts_with("line 3: unknown field `interval_second`"), "{refused}");
    assert!(refused.ends_with("; did you mean `interval_seconds`?"), "{refused}");
    let refused = Config::parse("[bugdet]\n").expect_err("refused");
    assert!(refused.ends_with("; did you mean `budget`?"), "{refused}");
    let refused = Config::parse("[nothing_alike]\n").expect_err("refused");
    assert!(!refused.contains("did you mean"), "{refused}");
}

#[test]
fn values_out_of_range_are_refused() {
    let wrong = [
        "[metrics]\nlisten = \"0.0.0.0:9478\"",
        "[metrics]\nlisten = \"localhost\"",
        "[metrics]\ninterval_seconds = 0.0",
        "[metrics]\nmax_series = 1",
        "[budget]\ncores = -1.0",
        "[budget]\ncores = nan",
        "[budget]\nring_bytes = 100000",
        "[discovery]\ninterval_seconds = 5.0\nlongest_seconds = 2.0",
        "[otlp]\nendpoint = \"grpc://collector:4317\"",
        "[otlp]\nendpoint = \"collector\"",
        "[otlp]\ninterval_seconds = 0.0",
        "[otlp]\ntimeout_seconds = inf",
        "[otlp]\nmax_queue_bytes = 1000",
        "[bundles]\nrecent_events = 100001",
        "[evidence]\ninterval_minutes = 0",
        "[evidence]\ninterval_minutes = 7",
        "[evidence]\ninterval_minutes = 120",
        "[evidence]\nmax_bytes = 1000",
        "[evidence]\ndirectory = \"here\"",
        "[evidence.upload]\nurl = \"s3://fleet\"",
        "[evidence]\ndirectory = \"/tmp\"\nupload.url = \"/mnt\"",
        "[evidence]\ndirectory = \"/tmp\"\nupload.endpoint = \"https://obs\"",
    ];
    for text in wrong {
        assert!(Config::parse(text).expect("parsed").check().is_err(), "{text}");
    }
    let open = "[metrics]\nlisten = \"0.0.0.0:9478\"\ninsecure_listen = true";
    Config::parse(open).expect("parsed").check().expect("asked for");
}
