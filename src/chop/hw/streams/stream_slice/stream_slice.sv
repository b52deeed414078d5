// Passes some consecutive beats of each row on and drops the others: a token, a part of a vector.
// Latency 1 cycle, throughput 1 beat per cycle.
`default_nettype none

module stream_slice #(
    parameter int DATA_WIDTH = 8,  // bits of one beat, 1 or more
    parameter int BEATS      = 4,  // of a row, 1 or more
    parameter int FIRST      = 1,  // the first beat that is kept, counted from 0
    parameter int KEPT       = 2   // beats that are kept, 1 or more
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
  if (DATA_WIDTH < 1 || FIRST < 0 || KEPT < 1 || FIRST + KEPT > BEATS) begin : g_refuse_size
    $error("stream_slice: beats %0d to %0d of %0d with %0d bits: there are no such",
           FIRST, FIRST + KEPT - 1, BEATS, DATA_WIDTH);
  end
`endif

  localparam int BEAT_WIDTH = $clog2(BEATS + 1);

  logic [BEAT_WIDTH-1:0] beat_q;
  logic is_begun, is_kept;

  if (FIRST == 0) begin : g_from_the_first
    assign is_begun = 1'b1;
  end else begin : g_from_a_later_one
    assign is_begun = beat_q >= BEAT_WIDTH'(FIRST);
  end
  assign is_kept = is_begun && beat_q < BEAT_WIDTH'(FIRST + KEPT);

  always_ff @(posedge clk) begin
    if (data_in_0_valid && data_in_0_ready) begin
      beat_q <= beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : beat_q + 1'b1;
    end
    if (rst) beat_q <= '0;
  end

  skid_buffer #(
      .DATA_WIDTH(DATA_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid && is_kept),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
