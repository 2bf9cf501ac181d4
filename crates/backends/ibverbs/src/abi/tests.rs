//! Comparison of layouts and numbers with the system's header, where it is installed.

use std::io::Write;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

use super::*;

/// Our own view: expressions of C, with their values.
type Facts = Vec<(String, u64)>;

/// Lists the offsets of fields, and the sizes of structures that are declared whole.
macro_rules! layouts {
    ($facts:ident; $($kind:ident $name:ident { $($field:ident)* })*) => { $(
        layouts!(@size $kind $facts $name);
        $($facts.push((
            format!("offsetof(struct {}, {})", stringify!($name), stringify!($field)),
            offset_of!($name, $field) as u64,
        ));)*
    )* };
    (@size whole $facts:ident $name:ident) => {
        $facts.push((format!("sizeof(struct {})", stringify!($name)), size_of::<$name>() as u64));
    };
    (@size part $facts:ident $name:ident) => {};
}

fn facts() -> Facts {
    let mut facts: Facts = CONSTANTS.iter().map(|&(name, value)| (format!("(uint64_t){name}"), value)).collect();
    layouts! { facts;
        part ibv_device { node_type transport_type name dev_name dev_path ibdev_path }
        whole ibv_context_ops { poll_cq req_notify_cq post_send post_recv }
        part ibv_context { device ops cmd_fd async_fd num_comp_vectors }
        whole ibv_device_attr {
            fw_ver node_guid max_mr_size vendor_id max_qp_wr device_cap_flags max_sge max_cqe max_qp_rd_atom
            max_qp_init_rd_atom atomic_cap max_ah max_pkeys local_ca_ack_delay phys_port_cnt
        }
        whole ibv_port_attr {
            state max_mtu active_mtu gid_tbl_len max_msg_sz lid sm_lid lmc active_width active_speed phys_state
            link_layer flags port_cap_flags2
        }
        whole ibv_mr { context pd addr length handle lkey rkey }
        whole ibv_comp_channel { context fd refcnt }
        part ibv_cq { context channel cq_context handle cqe }
        part ibv_qp { context qp_context pd send_cq recv_cq srq handle qp_num }
        whole ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
        whole ibv_qp_init_attr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
        whole ibv_global_route { dgid flow_label sgid_index hop_limit traffic_class }
        whole ibv_ah_attr { grh dlid sl src_path_bits static_rate is_global port_num }
        whole ibv_qp_attr {
            qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr
            alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
            min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout rate_limit
        }
        whole ibv_sge { addr length lkey }
        whole ibv_send_wr { wr_id next sg_list num_sge opcode send_flags imm_data wr }
        whole ibv_recv_wr { wr_id next sg_list num_sge }
        whole ibv_wc {
            wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits
        }
    }
    let mut inside = |path: &str, offset: usize| {
        facts.push((format!("offsetof(struct ibv_send_wr, wr.{path})"), (offset_of!(ibv_send_wr, wr) + offset) as u64));
    };
    inside("rdma.remote_addr", offset_of!(ibv_wr_rdma, remote_addr));
    inside("rdma.rkey", offset_of!(ibv_wr_rdma, rkey));
    inside("atomic.remote_addr", offset_of!(ibv_wr_atomic, remote_addr));
    inside("atomic.compare_add", offset_of!(ibv_wr_atomic, compare_add));
    inside("atomic.swap", offset_of!(ibv_wr_atomic, swap));
    inside("atomic.rkey", offset_of!(ibv_wr_atomic, rkey));
    inside("ud.ah", offset_of!(ibv_wr_ud, ah));
    inside("ud.remote_qpn", offset_of!(ibv_wr_ud, remote_qpn));
    inside("ud.remote_qkey", offset_of!(ibv_wr_ud, remote_qkey));
    facts.push(("sizeof(union ibv_gid)".into(), size_of::<ibv_gid>() as u64));
    facts.push(("_Alignof(union ibv_gid)".into(), align_of::<ibv_gid>() as u64));
    facts
}

/// The header's value of each expression; `None` where it is not installed.
fn ask_header(facts: &Facts) -> Option<Vec<u64>> {
    let lines = facts.iter().map(|(expression, _)| format!("    say({expression});\n"));
    // Without the header, the program prints nothing.
    let source = format!(
        "#if __has_include(<infiniband/verbs.h>)\n#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         #define say(what) printf(\"%llu\\n\", (unsigned long long)(what))\n\
         int main(void) {{\n{}}}\n#else\nint main(void) {{}}\n#endif\n",
        lines.collect::<String>()
    );
    let program = std::env::temp_dir().join(format!("sinew-layouts-{}", std::process::id()));
    let mut gcc = Command::new("gcc");
    let mut gcc = gcc.args(["-x", "c", "-", "-o"]).arg(&program).stdin(Stdio::piped()).spawn().unwrap();
    gcc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(gcc.wait().unwrap().success(), "the header does not have all of it");
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let values: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    (!values.is_empty()).then_some(values)
}

#[test]
fn layouts_and_numbers_are_those_of_the_header() {
    let facts = facts();
    let Some(values) = ask_header(&facts) else {
        crate::common::skipped("no infiniband/verbs.h");
        return;
    };
    assert_eq!(values.len(), facts.len());
    let wrong: Vec<_> = facts.iter().zip(values).filter(|((_, ours), header)| ours != header).collect();
    assert!(wrong.is_empty(), "ours, and the header's: {wrong:#?}");
}
