// Two-entry register slice: cuts the valid, ready and data paths of a stream.
// Latency 1 cycle, throughput 1 beat per cycle; `data_in_0_ready` is a register.
`default_nettype none

module skid_buffer #(
    parameter int DATA_WIDTH = 8  // bits of one beat, 1 or more
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1) begin : g_refuse_size
    $error("skid_buffer: width must be 1 or more, got %0d", DATA_WIDTH);
  end
`endif

  logic [DATA_WIDTH-1:0] out_q, held_q;
  logic out_valid_q, ready_q;  // not ready: `held_q` counts

  assign data_in_0_ready  = ready_q;
  assign data_out_0       = out_q;
  assign data_out_0_valid = out_valid_q;

  always_ff @(posedge clk) begin
    if (data_out_0_ready || !out_valid_q) begin
      out_q       <= ready_q ? data_in_0 : held_q;
      out_valid_q <= !ready_q || data_in_0_valid;
      ready_q     <= 1'b1;
    end else if (data_in_0_valid) begin
      ready_q <= 1'b0;
    end
    if (ready_q) held_q <= data_in_0;  // no wider enable: only `ready_q` says that it counts
    if (rst) begin  // control only: data needs no reset
      out_valid_q <= 1'b0;
      ready_q     <= 1'b1;
    end
  end

endmodule

`default_nettype wire
