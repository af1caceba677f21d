//! A browser and one page in it, by Chromium's own protocol over a pipe (`--remote-debugging-pipe`: JSON, each message ends with a zero
//! byte), so that nothing stands in between.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing that a page does here takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A page. The browser ends with it.
pub struct Page {
    browser: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    calls: u64,
    /// What the page did that it should not.
    complaints: Vec<String>,
    _profile: TempDir,
}

impl Page {
    /// Opens a file, and waits until it is drawn.
    pub fn open(file: &Path) -> Self {
        let mut page = Self::start();
        let target = page.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let session = page.call("Target.attachToTarget", &json!({ "targetId": target["targetId"], "flatten": true }));
        page.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), &json!({}));
        }
        let screen = json!({ "width": 1360, "height": 860, "deviceScaleFactor": 1, "mobile": false });
        page.call("Emulation.setDeviceMetricsOverride", &screen);
        page.call(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [{ "name": "prefers-color-scheme", "value": "light" }] }),
        );
        page.call("Page.navigate", &json!({ "url": format!("file://{}", file.display()) }));
        let start = Instant::now();
        while page.value("document.documentElement?.dataset.ready") != "1" {
            assert!(start.elapsed() < PATIENCE, "the page is not drawn: {:?}", page.complaints);
            sleep(Duration::from_millis(50));
        }
        page
    }

    fn start() -> Self {
        let path =
            std::env::var("MEMSCOPE_CHROMIUM").expect("`./x test` names the browser, unless `--no-browser` was given");
        let profile = tempfile::tempdir().expect("a folder");
        let options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--lang=en",
            "--remote-debugging-pipe",
        ];
        // The protocol is at descriptors 3 and 4.
        let mut browser = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, &path])
            .args(options)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let (to, from) = (browser.stdin.take().expect("a pipe"), browser.stdout.take().expect("a pipe"));
        let from = BufReader::new(from);
        Self { browser, to, from, session: None, calls: 0, complaints: Vec::new(), _profile: profile }
    }

    /// Asks the browser, and waits for its answer.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        loop {
            let mut answer = Vec::new();
            self.from.read_until(0, &mut answer).expect("the browser answers");
            assert_eq!(answer.pop(), Some(0), "the browser has ended: {:?}", self.complaints);
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            if answer["id"] != self.calls {
                self.notice(&answer);
                continue;
            }
            assert!(answer.get("error").is_none(), "{method}: {answer}");
            return answer["result"].clone();
        }
    }

    fn notice(&mut self, event: &Value) {
        let parameters = &event["params"];
        let complaint = match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Page.javascriptDialogOpening" => true,
            "Log.entryAdded" => parameters["entry"]["level"] == "error",
            "Runtime.consoleAPICalled" => parameters["type"] == "error",
            "Network.requestWillBeSent" => {
                !parameters["request"]["url"].as_str().unwrap_or_default().starts_with("file:")
            }
            _ => false,
        };
        if complaint {
            self.complaints.push(event.to_string());
        }
    }

    /// Make sure that there was no error, no dialog and no request.
    pub fn is_quiet(&mut self) {
        self.value("1");
        assert_eq!(self.complaints, Vec::<String>::new());
    }

    /// What an expression gives.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &asked);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// The text that an expression gives.
    pub fn text(&mut self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or_else(|| panic!("{expression} is no text")).to_owned()
    }

    /// Presses a key where the focus is.
    pub fn key(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", &json!({ "type": kind, "key": key, "code": key }));
        }
    }

    /// Clicks into a chart: a part of its width, and pixels below its upper edge.
    pub fn click(&mut self, id: &str, across: f64, down: f64) {
        let place = format!(
            "(() => {{ const e = document.getElementById('{id}'); e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
             const r = e.getBoundingClientRect(); return [r.left + r.width * {across}, r.top + {down}]; }})()"
        );
        let place = self.value(&place);
        for kind in ["mousePressed", "mouseReleased"] {
            let click = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &click);
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Its own processes end with it.
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
