use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    thread,
};

use super::*;

/// Heads and bodies.
type Requests = Vec<(String, Vec<u8>)>;

/// A server that answers as it is asked to, one connection for each answer. Gives its address, and what came at the end.
fn server_with(answers: Vec<(u16, &'static str)>) -> (String, thread::JoinHandle<Requests>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a socket");
    let address = listener.local_addr().expect("an address").to_string();
    let serve = move || {
        let mut requests = Vec::new();
        for (status, body) in answers {
            let mut stream = BufReader::new(listener.accept().expect("a connection").0);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(stream.read_line(&mut head).expect("a line"), 0, "{head}");
            }
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let mut bytes = vec![0; length.expect("a length")];
            stream.read_exact(&mut bytes).expect("a body");
            requests.push((head, bytes));
            let answer = format!("HTTP/1.1 {status} X\r\nETag: \"7\"\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.get_mut().write_all(answer.as_bytes()).expect("answered");
        }
        requests
    };
    (address, thread::spawn(serve))
}

fn settings(url: &str, endpoint: &str) -> UploadSettings {
    UploadSettings { url: url.to_owned(), endpoint: endpoint.to_owned(), ..UploadSettings::default() }
}

fn bucket(settings: &UploadSettings) -> Bucket {
    let builder = AmazonS3Builder::new().with_access_key_id("AKID").with_secret_access_key("secret");
    Bucket::over(builder, settings).expect("a bucket")
}

/// A request as S3 has it: path, condition, and a signature over the sum of the body, which is that of `sha256sum`.
#[test]
fn puts_if_absent() {
    let (address, server) = server_with(vec![(200, ""), (412, "<Error/>")]);
    let endpoint = format!("http://{address}");
    let region = "cn-north-4".to_owned();
    let mut bucket = bucket(&UploadSettings { region, ..settings("s3://fleet/team-a/", &endpoint) });
    assert_eq!(bucket.put("v1/places/date=2024-02-29/a.parquet", b"hello".to_vec()), Ok(()));
    // One that is there is done.
    assert_eq!(bucket.put("v1/b.parquet", b"hello".to_vec()), Ok(()));
    let requests = server.join().expect("it ends");
    let (head, body) = &requests[0];
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("put /fleet/team-a/v1/places/date%3d2024-02-29/a.parquet http/1.1\r\n"), "{head}");
    for line in [
        format!("host: {address}"),
        "if-none-match: *".to_owned(),
        "x-amz-content-sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824".to_owned(),
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    assert!(head.contains("\r\nauthorization: aws4-hmac-sha256 credential=akid/"), "{head}");
    assert!(head.contains("/cn-north-4/s3/aws4_request"), "{head}");
    assert_eq!(body, b"hello");
}

/// Stores that know no condition replace the object by the same one.
#[test]
fn puts_without_condition() {
    let (address, server) = server_with(vec![(200, "")]);
    let mut bucket =
        bucket(&UploadSettings { put_if_absent: false, ..settings("s3://fleet", &format!("http://{address}")) });
    assert_eq!(bucket.put("v1/a.parquet", b"hello".to_vec()), Ok(()));
    let requests = server.join().expect("it ends");
    assert!(requests[0].0.starts_with("PUT /fleet/v1/a.parquet HTTP/1.1\r\n"), "{}", requests[0].0);
    assert!(!requests[0].0.to_ascii_lowercase().contains("if-none-match"), "{}", requests[0].0);
}

/// A refusal, and a server that fails three times, are one line each.
#[test]
fn failures_are_short() {
    const PAGE: &str = "<Error><Code>AccessDenied</Code>\n\u{1b}[31m0123456789012345678901234567890123456789</Error>";
    let (address, server) = server_with(vec![(403, PAGE), (500, ""), (500, ""), (500, "")]);
    let mut bucket = bucket(&settings("s3://fleet", &format!("http://{address}")));
    let refused = bucket.put("v1/a.parquet", b"hello".to_vec()).expect_err("refused");
    assert!(refused.contains("403") && refused.contains("AccessDenied"), "{refused}");
    assert!(refused.chars().all(|character| !character.is_control()) && refused.len() < 400, "{refused}");
    let failed = bucket.put("v1/a.parquet", b"hello".to_vec()).expect_err("failed");
    assert!(failed.contains("500"), "{failed}");
    assert_eq!(server.join().expect("it ends").len(), 4);
    // Without a server at all.
    let gone = bucket.put("v1/a.parquet", b"hello".to_vec()).expect_err("gone");
    assert!(gone.contains("cannot connect"), "{gone}");
}

#[test]
fn settings_are_checked() {
    let place = |url: &str, endpoint: &str, virtual_hosted| {
        place(&UploadSettings { virtual_hosted, ..settings(url, endpoint) })
            .map(|it| (it.bucket, it.prefix, it.endpoint))
    };
    let expected = |bucket: &str, prefix: &str, endpoint: Option<&str>| {
        Ok((bucket.to_owned(), prefix.to_owned(), endpoint.map(str::to_owned)))
    };
    assert_eq!(place("s3://fleet", "", false), expected("fleet", "", None));
    assert_eq!(place("s3://fleet/", "", true), expected("fleet", "", None));
    let obs = "https://obs.cn-north-4.myhuaweicloud.com";
    assert_eq!(place("s3://fleet/a/b=1/", obs, false), expected("fleet", "a/b=1/", Some(obs)));
    let hosted = "https://fleet.obs.cn-north-4.myhuaweicloud.com";
    assert_eq!(place("s3://fleet/a", &format!("{obs}/"), true), expected("fleet", "a/", Some(hosted)));
    assert_eq!(place("s3://fleet", "http://10.0.0.1:9000", false), expected("fleet", "", Some("http://10.0.0.1:9000")));
    for url in [
        "fleet",
        "s3://",
        "s3://a",
        "s3://fl@et",
        "s3://fleet/../x",
        "s3://fleet/a//b",
        "s3://fleet/a b",
        "https://h/b",
    ] {
        let why = place(url, "", false).expect_err("refused");
        assert!(why.starts_with(&format!("evidence.upload.url is `{url}`: its form is s3://bucket/folder")), "{why}");
    }
    for endpoint in ["obs.example", "https://h/path", "https://a:b@h", "ftp://h", "https://h:0"] {
        let why = place("s3://fleet", endpoint, false).expect_err("refused");
        assert!(why.starts_with(&format!("evidence.upload.endpoint is `{endpoint}`: its form is https://")), "{why}");
    }
}
