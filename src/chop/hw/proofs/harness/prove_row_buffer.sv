// The laws of a stream, for rows that pass `row_buffer`: each beat beside the number that came with
// the last one of its row. `enable` is its sink: what it gives stays until then.
`default_nettype none

module prove_row_buffer #(
    parameter int WIDTH = 1,
    parameter int BEATS = 2
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic [WIDTH-1:0] scalar_in,
    input  wire logic data_in_0_valid,
    input  wire logic enable,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [WIDTH-1:0] data_out_0, scalar_out;
  logic [BEATS*2*WIDTH-1:0] tensor;
  logic [7:0] place;

  row_buffer #(.DATA_WIDTH(WIDTH), .SCALAR_WIDTH(WIDTH), .BEATS(BEATS)) dut (.*);

  tensor_laws #(
      .WIDTH(2 * WIDTH), .IN_BEATS(BEATS), .OUT_BEATS(BEATS), .SLOTS(3), .LATENCY(BEATS), .GAP(BEATS + 2)
  ) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(enable),  // its output is a stage of a pipeline: it moves with the others alone
      .taken    (data_in_0_valid && data_in_0_ready),
      .beat     ({scalar_in, data_in_0}),
      .tensor   (tensor),
      .place    (place),
      .due      ({tensor[(2*BEATS-1)*WIDTH+:WIDTH], tensor[place*2*WIDTH+:WIDTH]}),
      .data     ({scalar_out, data_out_0}),
      .valid    (data_out_0_valid),
      .ready    (enable),
      .broken   (broken)
  );

endmodule

`default_nettype wire
