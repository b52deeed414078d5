// Waits for a beat on both inputs and hands them on together, input 0 in the low bits.
// Latency 0 (combinational), throughput 1 pair per cycle.
`default_nettype none

module stream_join #(
    parameter int DATA_IN_0_WIDTH = 8,  // bits of one beat, 1 or more
    parameter int DATA_IN_1_WIDTH = 8   // bits of one beat, 1 or more
) (
    input  wire logic [                DATA_IN_0_WIDTH-1:0] data_in_0,
    input  wire logic                                       data_in_0_valid,
    output      logic                                       data_in_0_ready,
    input  wire logic [                DATA_IN_1_WIDTH-1:0] data_in_1,
    input  wire logic                                       data_in_1_valid,
    output      logic                                       data_in_1_ready,
    output      logic [DATA_IN_0_WIDTH+DATA_IN_1_WIDTH-1:0] data_out_0,
    output      logic                                       data_out_0_valid,
    input  wire logic                                       data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_WIDTH < 1 || DATA_IN_1_WIDTH < 1) begin : g_refuse_size
    $error("stream_join: DATA_IN_0_WIDTH and DATA_IN_1_WIDTH must be 1 or more, got %0d and %0d",
           DATA_IN_0_WIDTH, DATA_IN_1_WIDTH);
  end
`endif

  assign data_out_0       = {data_in_1, data_in_0};
  assign data_out_0_valid = data_in_0_valid && data_in_1_valid;
  assign data_in_0_ready  = data_out_0_ready && data_in_1_valid;
  assign data_in_1_ready  = data_out_0_ready && data_in_0_valid;

endmodule

`default_nettype wire
