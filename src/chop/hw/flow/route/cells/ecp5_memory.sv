// DP16KD of ECP5 with its ports as vectors, to simulate netlists with: 1024 words of 18 bits. A byte
// has 9 bits, of which ports of 1, 2 and 4 bits see the low 8. The low address bits of wide ports
// are byte enables. A port of 36 bits takes or gives its upper half on the pins of B.
`default_nettype none

module ecp5_memory #(
    parameter int            DATA_WIDTH_A = 18,  // 1, 2, 4, 9, 18 or 36
    parameter int            DATA_WIDTH_B = 18,
    parameter [127:0]        WRITEMODE_A  = "NORMAL",
    parameter [127:0]        WRITEMODE_B  = "NORMAL",
    parameter logic [20479:0] INIT        = '0  // 20 bits for each word, of which 18 count
) (
    input  wire logic        CLKA,
    input  wire logic        CEA,
    input  wire logic        WEA,
    input  wire logic        RSTA,
    input  wire logic [13:0] ADA,
    input  wire logic [17:0] DIA,
    output      logic [17:0] DOA,
    input  wire logic        CLKB,
    input  wire logic        CEB,
    input  wire logic        WEB,
    input  wire logic        RSTB,
    input  wire logic [13:0] ADB,
    input  wire logic [17:0] DIB,
    output      logic [17:0] DOB
);

  logic [17:0] words[1024];
  logic [35:0] out_a_q, out_b_q, wide_in;

  initial for (int i = 0; i < 1024; i++) words[i] = INIT[20*i+:18];

  assign wide_in = {DIB, DIA};
  assign DOB     = DATA_WIDTH_B == 36 ? out_b_q[35:18] : out_b_q[17:0];
  assign DOA     = DATA_WIDTH_B == 36 ? out_b_q[17:0] : out_a_q[17:0];

  function automatic logic [35:0] found(input int width, input logic [13:0] address,
                                        input logic [17:0] low, input logic [17:0] high);
    logic [8:0] octet;
    octet = address[3] ? low[17:9] : low[8:0];
    case (width)
      36: found = {high, low};
      18: found = {18'b0, low};
      9: found = {27'b0, octet};
      4: found = {32'b0, address[2] ? octet[7:4] : octet[3:0]};
      2: found = {34'b0, octet[2*address[2:1]+:2]};
      default: found = {35'b0, octet[address[2:0]]};
    endcase
  endfunction

  // A word after the write of `data` by a port of `width` bits.
  function automatic logic [17:0] merged(input int width, input logic [13:0] address,
                                         input logic [17:0] held, input logic [17:0] data);
    logic [8:0] octet;
    octet = address[3] ? held[17:9] : held[8:0];
    case (width)
      36, 18: merged = {address[1] ? data[17:9] : held[17:9],
                        address[0] ? data[8:0] : held[8:0]};
      9: octet = data[8:0];
      4: if (address[2]) octet[7:4] = data[3:0]; else octet[3:0] = data[3:0];
      2: octet[2*address[2:1]+:2] = data[1:0];
      default: octet[address[2:0]] = data[0];
    endcase
    if (width < 18) merged = address[3] ? {octet, held[8:0]} : {held[17:9], octet};
  endfunction

  logic [9:0] row_a, row_b;
  assign row_a = DATA_WIDTH_A == 36 ? {ADA[13:5], 1'b0} : ADA[13:4];
  assign row_b = DATA_WIDTH_B == 36 ? {ADB[13:5], 1'b0} : ADB[13:4];

  always @(posedge CLKA) begin
    if (CEA && WEA) begin
      words[row_a] <= merged(DATA_WIDTH_A, ADA, words[row_a], DIA);
      if (DATA_WIDTH_A == 36) begin
        words[row_a|10'd1] <= merged(36, {12'b0, ADA[3:2]}, words[row_a|10'd1], DIB);
      end
    end
    if (CEA && (!WEA || WRITEMODE_A == "READBEFOREWRITE")) begin
      out_a_q <= found(DATA_WIDTH_A, ADA, words[row_a], words[row_a|10'd1]);
    end else if (CEA && WRITEMODE_A == "WRITETHROUGH") begin
      out_a_q <= wide_in;
    end
    if (RSTA) out_a_q <= '0;
  end

  always @(posedge CLKB) begin
    if (CEB && WEB) words[row_b] <= merged(DATA_WIDTH_B, ADB, words[row_b], DIB);
    if (CEB && (!WEB || WRITEMODE_B == "READBEFOREWRITE")) begin
      out_b_q <= found(DATA_WIDTH_B, ADB, words[row_b], words[row_b|10'd1]);
    end else if (CEB && WRITEMODE_B == "WRITETHROUGH") begin
      out_b_q <= {18'b0, DIB};
    end
    if (RSTB) out_b_q <= '0;
  end

endmodule

`default_nettype wire
