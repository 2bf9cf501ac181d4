//! What became of frames.

macro_rules! reasons {
    ($($name:ident $text:literal $doc:literal;)*) => {
        /// Why a frame went no further.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $doc] $name,)*
        }

        impl Reason {
            /// All of them, in the order in which they are shown.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in tables and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    Truncated "truncated" "It is shorter than its headers say.";
    Type "ether_type" "Its Ethernet type is none that is forwarded, such as a VLAN's.";
    NotForUs "not_for_us" "Its Ethernet address is another interface's.";
    Source "source" "Its source is no host's: a group, nobody, the host itself, or an address of the router.";
    Destination "destination" "Its destination is none that a router sends to: a group, a broadcast, the host itself, or an address of one link only.";
    Version "version" "The version of its IP header is not that of its Ethernet type.";
    Length "length" "A length in a header contradicts another.";
    Checksum "checksum" "A checksum is wrong.";
    Options "options" "Options or extension headers are cut off, or more than are read.";
    SourceRoute "source_route" "It names routers to pass, which is refused.";
    Arp "arp" "It is no message of ARP for IPv4.";
    Discovery "discovery" "It is no valid message of neighbour discovery.";
    TimeToLive "time_to_live" "It passed as many routers as it may.";
    NoRoute "no_route" "There is no route to its destination.";
    Prohibited "prohibited" "A route says that it is to go nowhere.";
    TooBig "too_big" "The next link does not carry it, and it may not be cut.";
    QueueFull "queue_full" "Too many frames wait for a neighbour's address.";
    Neighbour "neighbour" "Nobody answers for the next hop.";
    Local "local" "It is for the router itself, which has nothing that takes it.";
    Name "name" "It has no name, or one with an empty component.";
    NotInterest "not_interest" "It is a packet of named data other than an Interest.";
    Station "station" "Its source is no station's address, or its station is behind the port that it came from.";
}

/// Counts of a forwarder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were looked at.
    pub received: u64,
    /// Frames that were sent on, those that waited for a neighbour included.
    pub forwarded: u64,
    /// Frames that were for the forwarder itself, and were answered or learnt from.
    pub taken: u64,
    /// Frames that the forwarder made: answers, questions, errors, pieces.
    pub made: u64,
    /// Errors that were not sent because enough were. The frames count as dropped for their own reason.
    pub errors_held: u64,
    dropped: [u64; Reason::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self { received: 0, forwarded: 0, taken: 0, made: 0, errors_held: 0, dropped: [0; Reason::ALL.len()] }
    }
}

impl Counters {
    /// Frames dropped for a reason.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Frames dropped for any.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Counts a dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }
}
