//! A client of the service, which makes one request after another and hears news meanwhile.

use std::cell::RefCell;
use std::rc::Rc;

use sinew::fabric::Address;
use sinew::prelude::*;

use super::{CANCEL, NEWS, RECALL, REMEMBER, SUBSCRIBE, TIME_OUT, number};

pub struct Visitor {
    pub rpc: Rpc,
    session: SessionId,
    pub name: u64,
    pub step: usize,
    remembered: Option<u64>,
    news: Rc<RefCell<Vec<Vec<u8>>>>,
}

/// A visitor's requests, in order.
const STEPS: [RequestType; 5] = [SUBSCRIBE, REMEMBER, RECALL, TIME_OUT, CANCEL];

impl Visitor {
    pub fn new(mut rpc: Rpc, service: &Address, name: u64) -> Self {
        let news = Rc::<RefCell<Vec<Vec<u8>>>>::default();
        let hears = Rc::clone(&news);
        let on_news = move |call: Call<'_>| {
            hears.borrow_mut().push(call.request().to_vec());
            call.reply(b"");
        };
        rpc.handle(NEWS, on_news).unwrap();
        let session = rpc.begin_connect_with(&service.to_string(), ConnectOptions::new().call_back(4)).unwrap();
        Self { rpc, session, name, step: 0, remembered: None, news }
    }

    fn value(&self) -> Vec<u8> {
        // The value is longer than a packet.
        self.name.to_le_bytes().repeat(500)
    }

    pub fn is_over(&self) -> bool {
        self.step > STEPS.len() && self.news.borrow().contains(&self.value())
    }

    fn ask(&mut self) {
        let Some(kind) = STEPS.get(self.step) else {
            self.step += 1;
            return;
        };
        let data = match *kind {
            REMEMBER => self.value(),
            RECALL => self.remembered.unwrap().to_le_bytes().to_vec(),
            _ => Vec::new(),
        };
        let (mut request, response) = (self.rpc.alloc(data.len()).unwrap(), self.rpc.alloc(8).unwrap());
        request.fill(&data).unwrap();
        self.rpc.enqueue_request(self.session, *kind, request, response, self.step as u64).unwrap();
        self.step += 1;
    }

    pub fn turn(&mut self) -> bool {
        let mut busy = self.rpc.turn();
        while let Some(event) = self.rpc.poll_event() {
            assert!(matches!(event, SessionEvent::Connected(_)), "{event:?}");
            self.ask();
        }
        while let Some(completion) = self.rpc.poll_completion() {
            busy = true;
            completion.result.unwrap();
            match STEPS[completion.tag as usize] {
                REMEMBER => self.remembered = Some(number(&completion.response)),
                RECALL => assert!(*completion.response == self.value()),
                TIME_OUT => assert_eq!(*completion.response, *format!("{:?}", Cause::DeadlinePassed).as_bytes()),
                CANCEL => assert_eq!(*completion.response, *format!("{:?}", Cause::Cancelled).as_bytes()),
                _ => {}
            }
            self.ask();
        }
        busy
    }
}
