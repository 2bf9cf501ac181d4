//! An assembler for the few BPF instructions that the program needs, with jumps to labels.

/// A register of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(u8);

impl Register {
    /// r0 to r9.
    pub const ALL: [Self; 10] =
        [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7), Self(8), Self(9)];
    /// The frame pointer, r10: the end of the stack.
    pub const FRAME: Self = Self(10);
}

/// Size of a load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// Condition of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Jump {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
}

const LOAD_WIDE: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE_NUMBER: u8 = 0x62;
const STORE: u8 = 0x63;
const ADD_NUMBER: u8 = 0x07;
const ADD: u8 = 0x0f;
const AND_NUMBER: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const MOVE_NUMBER: u8 = 0xb7;
const MOVE: u8 = 0xbf;
const JUMP: u8 = 0x05;
const JUMP_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Marks a wide load whose number is a map's descriptor.
const OF_MAP: u8 = 1;

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub code: u8,
    pub to: u8,
    pub from: u8,
    pub offset: i16,
    pub number: i32,
}

impl Instruction {
    /// The bytes that the kernel reads.
    pub fn to_bytes(self) -> [u8; 8] {
        let [o0, o1] = self.offset.to_ne_bytes();
        let [n0, n1, n2, n3] = self.number.to_ne_bytes();
        let registers =
            if cfg!(target_endian = "little") { self.from << 4 | self.to } else { self.to << 4 | self.from };
        [self.code, registers, o0, o1, n0, n1, n2, n3]
    }
}

/// A place to jump to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(usize);

/// A program that is being written. Jumps only go forward, as the verifiers of old kernels require.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    /// Indices of jumps, and the labels that they go to.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts a label here.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, number: i32) {
        self.code.push(Instruction { code, to: to.0, from: from.0, offset, number });
    }

    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.push(LOAD | size as u8, to, from, offset, 0);
    }

    pub fn store(&mut self, size: Size, to: Register, offset: i16, from: Register) {
        self.push(STORE | size as u8, to, from, offset, 0);
    }

    pub fn store_number(&mut self, size: Size, to: Register, offset: i16, number: i32) {
        self.push(STORE_NUMBER | size as u8, to, Register(0), offset, number);
    }

    pub fn move_register(&mut self, to: Register, from: Register) {
        self.push(MOVE, to, from, 0, 0);
    }

    pub fn move_number(&mut self, to: Register, number: i32) {
        self.push(MOVE_NUMBER, to, Register(0), 0, number);
    }

    pub fn add_number(&mut self, to: Register, number: i32) {
        self.push(ADD_NUMBER, to, Register(0), 0, number);
    }

    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(ADD, to, from, 0, 0);
    }

    pub fn and_number(&mut self, to: Register, number: i32) {
        self.push(AND_NUMBER, to, Register(0), 0, number);
    }

    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(SHIFT_LEFT, to, Register(0), 0, bits);
    }

    /// Loads a map, by its descriptor.
    pub fn load_map(&mut self, to: Register, fd: i32) {
        self.push(LOAD_WIDE, to, Register(OF_MAP), 0, fd);
        self.push(0, Register(0), Register(0), 0, 0);
    }

    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP, Register(0), Register(0), 0, 0);
    }

    pub fn jump_if(&mut self, jump: Jump, register: Register, number: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | jump as u8, register, Register(0), 0, number);
    }

    pub fn jump_if_register(&mut self, jump: Jump, register: Register, other: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | JUMP_REGISTER | jump as u8, register, other, 0, 0);
    }

    pub fn call(&mut self, function: i32) {
        self.push(CALL, Register(0), Register(0), 0, function);
    }

    pub fn exit(&mut self) {
        self.push(EXIT, Register(0), Register(0), 0, 0);
    }

    /// Returns the instructions, with every jump resolved.
    ///
    /// # Panics
    ///
    /// When a label was not placed, or lies before a jump to it, which is a mistake in the program.
    pub fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0].expect("every label is placed");
            let offset = to.checked_sub(at + 1).expect("jumps go forward");
            self.code[at].offset = i16::try_from(offset).expect("the program is short");
        }
        self.code
    }
}
