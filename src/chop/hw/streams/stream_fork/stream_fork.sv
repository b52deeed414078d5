// Copies every beat to BRANCHES streams; each branch may run up to two beats ahead of the others.
// Latency 1 cycle, throughput 1 beat per cycle.
`default_nettype none

module stream_fork #(
    parameter int DATA_WIDTH = 8,  // bits of one beat, 1 or more
    parameter int BRANCHES   = 2   // output streams, 1 or more; branch 0 in the low bits
) (
    input  wire logic                           clk,
    input  wire logic                           rst,
    input  wire logic [         DATA_WIDTH-1:0] data_in_0,
    input  wire logic                           data_in_0_valid,
    output      logic                           data_in_0_ready,
    output      logic [BRANCHES*DATA_WIDTH-1:0] data_out_0,
    output      logic [           BRANCHES-1:0] data_out_0_valid,
    input  wire logic [           BRANCHES-1:0] data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || BRANCHES < 1) begin : g_refuse_size
    $error("stream_fork: width and BRANCHES must be 1 or more, got %0d and %0d",
           DATA_WIDTH, BRANCHES);
  end
`endif

  logic [BRANCHES-1:0] branch_ready;

  assign data_in_0_ready = &branch_ready;

  for (genvar branch = 0; branch < BRANCHES; branch++) begin : g_branch
    skid_buffer #(
        .DATA_WIDTH(DATA_WIDTH)
    ) u_skid_buffer (
        .clk             (clk),
        .rst             (rst),
        .data_in_0       (data_in_0),
        .data_in_0_valid (data_in_0_valid && data_in_0_ready),
        .data_in_0_ready (branch_ready[branch]),
        .data_out_0      (data_out_0[branch*DATA_WIDTH+:DATA_WIDTH]),
        .data_out_0_valid(data_out_0_valid[branch]),
        .data_out_0_ready(data_out_0_ready[branch])
    );
  end

endmodule

`default_nettype wire
