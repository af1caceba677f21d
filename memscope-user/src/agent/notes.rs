//! What the agent says, for tests.

use std::sync::{Arc, Mutex};

use crate::session::{Listener, Message, Speaker};

/// Messages in their order.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Vec<String>>);

impl Notes {
    /// A speaker, and where its messages are.
    pub(super) fn with_speaker() -> (Arc<Self>, Speaker) {
        let notes = Arc::new(Self::default());
        let speaker = Speaker::new(Arc::clone(&notes) as Arc<dyn Listener>);
        (notes, speaker)
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().expect("whole").clone()
    }
}

impl Listener for Notes {
    fn message(&self, message: &Message<'_>) {
        self.0.lock().expect("whole").push(message.text.to_string());
    }
}
